// SPDX-License-Identifier: MIT OR Apache-2.0
// What kublk takes from liburing 2.4, for a Debian whose liburing is older. As a header (HEADER), it declares that.
#include <errno.h>
#include <linux/io_uring.h>
#include <liburing.h>
#include <stdlib.h>
#include <sys/mman.h>

struct io_uring_buf_ring *io_uring_setup_buf_ring(struct io_uring *ring, unsigned entries, int group, unsigned flags,
        int *error);
int io_uring_free_buf_ring(struct io_uring *ring, struct io_uring_buf_ring *room, unsigned entries, int group);

#ifndef HEADER
struct io_uring_buf_ring *io_uring_setup_buf_ring(struct io_uring *ring, unsigned entries, int group, unsigned flags,
        int *error)
{
    struct io_uring_buf_reg reg = { .ring_entries = entries, .bgid = group, .flags = flags };
    void *room = mmap(NULL, entries * sizeof(struct io_uring_buf), PROT_READ | PROT_WRITE,
        MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);

    if (room == MAP_FAILED) {
        *error = -errno;
        return NULL;
    }
    reg.ring_addr = (unsigned long)room;
    *error = io_uring_register_buf_ring(ring, &reg, 0);
    if (*error) {
        munmap(room, entries * sizeof(struct io_uring_buf));
        return NULL;
    }
    io_uring_buf_ring_init(room);
    return room;
}

int io_uring_free_buf_ring(struct io_uring *ring, struct io_uring_buf_ring *room, unsigned entries, int group)
{
    int error = io_uring_unregister_buf_ring(ring, group);

    munmap(room, entries * sizeof(struct io_uring_buf));
    return error;
}
#endif
