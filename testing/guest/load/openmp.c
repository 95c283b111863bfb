/*
 * An OpenMP program: ROUNDS loops of STEPS steps for each thread, after each of which libgomp has all threads meet.
 *
 *   openmp ROUNDS STEPS
 */
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **words)
{
    long rounds = count > 1 ? atol(words[1]) : 0, steps = count > 2 ? atol(words[2]) : 0;

    for (long round = 0; round < rounds; round++)
#pragma omp parallel
        for (long step = 0; step < steps; step++)
            __asm__ volatile("" ::: "memory");
    printf("%ld rounds\n", rounds);
    return 0;
}
