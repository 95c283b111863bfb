//! Interleaved rounds: order of the measurements, and summary of the values.
//!
//! A machine drifts: other guests, heat, clocks. Each round measures every case once and begins with another one than
//! the round before, so that drift falls on all alike. What is said is the median with the smallest and the largest; a
//! ratio is taken within each round, because a slow round is slow for both.

use mqfq_report::progress::Progress;

/// The values of some rounds, in ascending order.
#[derive(Clone, PartialEq, Debug)]
pub struct Rounds(Vec<f64>);

impl Rounds {
    /// Rounds of values in any order.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Rounds {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        Rounds(values)
    }

    /// The middle one, the mean of the two middle ones if there is no middle; 0 of none.
    pub fn median(&self) -> f64 {
        match self.0.len() {
            0 => 0.0,
            count if count % 2 == 1 => self.0[count / 2],
            count => (self.0[count / 2 - 1] + self.0[count / 2]) / 2.0,
        }
    }

    /// 0 of none.
    pub fn smallest(&self) -> f64 {
        self.0.first().copied().unwrap_or(0.0)
    }

    /// 0 of none.
    pub fn largest(&self) -> f64 {
        self.0.last().copied().unwrap_or(0.0)
    }
}

/// Median of `value` over the rounds.
pub fn median<S>(rounds: &[S], value: impl Fn(&S) -> f64) -> f64 {
    Rounds::of(rounds.iter().map(value)).median()
}

/// Median of the ratios of `value` within each round.
pub fn ratio<S>(ours: &[S], theirs: &[S], value: impl Fn(&S) -> f64) -> f64 {
    Rounds::of(ours.iter().zip(theirs).map(|(ours, theirs)| value(ours) / value(theirs))).median()
}

/// Median ratio without rounds in which theirs was nothing, as in an instant on a busy machine; `None` if all were
/// such.
pub fn ratio_of_any<S>(ours: &[S], theirs: &[S], value: impl Fn(&S) -> f64) -> Option<f64> {
    let is_any = |(_, theirs): &(&S, &S)| value(theirs) > 0.0;
    let mut any = ours.iter().zip(theirs).filter(is_any).peekable();
    any.peek()?;
    Some(Rounds::of(any.map(|(ours, theirs)| value(ours) / value(theirs))).median())
}

/// Runs `cases` cases in so many rounds; those of one group of `group` are compared and stay near each other. `name`
/// says what a case is called while it runs. The values come back by case, one per round.
///
/// # Errors
/// The first of `run`.
pub fn interleaved<S>(
    rounds: u32,
    (cases, group): (usize, usize),
    progress: &mut Progress,
    name: impl Fn(usize) -> String,
    mut run: impl FnMut(usize) -> Result<S, String>,
) -> Result<Vec<Vec<S>>, String> {
    let mut seen: Vec<Vec<S>> = (0..cases).map(|_| Vec::new()).collect();
    for round in 0..rounds as usize {
        for first in (0..cases).step_by(group.max(1)) {
            let length = group.min(cases - first);
            for step in 0..length {
                let at = first + (step + round) % length;
                progress.step(&format!("{}, round {}", name(at), round + 1));
                seen[at].push(run(at)?);
            }
        }
    }
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_count_lies_between() {
        assert_eq!(Rounds::of([8.0, 1.0, 4.0, 2.0]).median(), 3.0);
        assert_eq!(Rounds::of([]).median(), 0.0);
        let rounds = Rounds::of([3.0, 1.0, 2.0]);
        assert_eq!((rounds.smallest(), rounds.median(), rounds.largest()), (1.0, 2.0, 3.0));
    }

    #[test]
    fn a_ratio_is_taken_within_its_round() {
        // The machine halves its speed in the second round: each ratio is 0.9 all the same.
        assert_eq!(ratio(&[900.0, 450.0, 900.0], &[1000.0, 500.0, 1000.0], |rate| *rate), 0.9);
        assert_eq!(ratio_of_any(&[5.0, 6.0], &[0.0, 3.0], |rate| *rate), Some(2.0));
        assert_eq!(ratio_of_any(&[5.0], &[0.0], |rate| *rate), None);
    }

    #[test]
    fn each_round_begins_with_another_case_of_each_group() {
        let mut order = Vec::new();
        let mut progress = Progress::new(10);
        let seen = interleaved(
            2,
            (5, 3),
            &mut progress,
            |at| at.to_string(),
            |at| {
                order.push(at);
                Ok(order.len())
            },
        );
        assert_eq!(seen.unwrap(), [vec![1, 8], vec![2, 6], vec![3, 7], vec![4, 10], vec![5, 9]]);
        assert_eq!(order, [0, 1, 2, 3, 4, 1, 2, 0, 4, 3]);
    }
}
