//! Cost of a dispatch token: the token tree, one counter and a bitmap under the same two loads.
//!
//! | pattern | an operation is |
//! |---|---|
//! | `kept` | a worker completes its oldest request and dispatches its next: the token goes back and one is taken. Half of D is out, spread evenly. |
//! | `handed-on` | a worker completes, has nothing to dispatch itself, and gives its token to the nearest ready worker, whom it wakes. There are half as many tokens as workers. |
//!
//! The first is what the tree is made for, the second what it is bad at: every token changes hands (MQFQ sections 3.2,
//! 3.3). The search for the nearest is the ready set's, the same for all three: with a counter a worker must be found
//! and woken, too. A worker that waits does not sleep, it watches a word of its own: the cost of waking is the other
//! half of this command.
//!
//! `handed-on` follows `mqfq`'s own steps: a woken worker that finds no token marks itself and tries once more; a
//! worker that goes to wait percolates, and wakes others if that brought tokens to the root. So as long as one worker
//! is awake, it or a worker that it wakes finds a token, and no run comes to a stop.

use super::lines::{Counted, Directory};
use super::threads::{self, Stop};
use mqfq_blk::worker::cores::Cpu;
use mqfq_sched::topology::Topology;
use mqfq_sched_watched::watched::{self, Access};
use mqfq_sim::rivals::tokens::AtomicCounter;
use mqfq_sim::rivals::tokens::{Bit, Hint, ScalableBitmap};
use mqfq_sim::rivals::word::{Padded, Word};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// D in the pattern `kept`: that of the paper's fast device (MQFQ table 1).
const DEPTH: u32 = 128;

/// Dispatch tokens of one device.
pub trait Tokens: Sync {
    /// A token taken.
    type Held;
    /// Memory of a worker between its calls.
    type Hint;
    /// First hint of `worker`.
    fn hint(&self, worker: usize) -> Self::Hint;
    /// Takes a token for `worker`.
    fn acquire(&self, worker: usize, hint: &mut Self::Hint) -> Option<Self::Held>;
    /// Gives one back for the worker's own next request.
    fn release_own(&self, worker: usize, token: Self::Held);
    /// Gives one back for `to`.
    fn release_toward(&self, from: usize, to: usize, token: Self::Held);
    /// `worker` goes to wait: returns how many tokens are free that perhaps no worker looks for.
    fn rest(&self, worker: usize) -> i64;
    /// Free tokens; exact while no other call is under way.
    fn free(&self) -> i64;
}

/// The workers that wait for a token.
pub trait Ready: Sync {
    /// `worker` waits.
    fn mark(&self, worker: usize);
    /// It does not any more.
    fn unmark(&self, worker: usize);
    /// Takes out the one nearest to `worker`.
    fn take_nearest(&self, worker: usize) -> Option<usize>;
}

/// The structures that ship, and the same source with counting atomics.
macro_rules! sched {
    ($sched:ident) => {
        impl Tokens for $sched::token_tree::TokenTree {
            type Held = $sched::policy::DispatchToken;
            type Hint = ();

            fn hint(&self, _worker: usize) {}

            fn acquire(&self, worker: usize, (): &mut ()) -> Option<Self::Held> {
                self.acquire($sched::topology::HctxId(worker as u16), 1)
            }

            fn release_own(&self, worker: usize, token: Self::Held) {
                self.release_local($sched::topology::HctxId(worker as u16), token);
            }

            fn release_toward(&self, from: usize, to: usize, token: Self::Held) {
                let (from, to) = ($sched::topology::HctxId(from as u16), $sched::topology::HctxId(to as u16));
                self.release_toward(from, to, token);
            }

            fn rest(&self, worker: usize) -> i64 {
                self.percolate($sched::topology::HctxId(worker as u16));
                self.root_units()
            }

            fn free(&self) -> i64 {
                self.total_units()
            }
        }

        impl Ready for $sched::ready_set::ReadySet {
            fn mark(&self, worker: usize) {
                self.mark($sched::topology::HctxId(worker as u16));
            }

            fn unmark(&self, worker: usize) {
                self.unmark($sched::topology::HctxId(worker as u16));
            }

            fn take_nearest(&self, worker: usize) -> Option<usize> {
                self.take_nearest($sched::topology::HctxId(worker as u16)).map(|hctx| hctx.index())
            }
        }
    };
}

sched!(mqfq_sched);
sched!(mqfq_sched_watched);

impl<W: Word> Tokens for AtomicCounter<W> {
    type Held = ();
    type Hint = ();

    fn hint(&self, _worker: usize) {}

    fn acquire(&self, _worker: usize, (): &mut ()) -> Option<()> {
        self.acquire(1).then_some(())
    }

    fn release_own(&self, _worker: usize, (): ()) {
        self.release(1);
    }

    fn release_toward(&self, _from: usize, _to: usize, (): ()) {
        self.release(1);
    }

    fn rest(&self, _worker: usize) -> i64 {
        0
    }

    fn free(&self) -> i64 {
        self.free()
    }
}

impl<W: Word> Tokens for ScalableBitmap<W> {
    type Held = Bit;
    type Hint = Hint;

    fn hint(&self, worker: usize) -> Hint {
        self.hint(worker)
    }

    fn acquire(&self, _worker: usize, hint: &mut Hint) -> Option<Bit> {
        self.acquire(hint)
    }

    fn release_own(&self, _worker: usize, bit: Bit) {
        self.release(bit);
    }

    fn release_toward(&self, _from: usize, _to: usize, bit: Bit) {
        self.release(bit);
    }

    fn rest(&self, _worker: usize) -> i64 {
        0
    }

    fn free(&self) -> i64 {
        i64::from(self.free())
    }
}

/// Compared structure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Structure {
    /// [`mqfq_sched::token_tree`].
    TokenTree,
    /// [`AtomicCounter`].
    AtomicCounter,
    /// [`ScalableBitmap`].
    ScalableBitmap,
}

/// See the module's text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// A worker keeps its tokens.
    Kept,
    /// Each token goes to another worker. Only with two workers or more.
    HandedOn,
}

impl Pattern {
    /// Its name in the report.
    pub const fn name(self) -> &'static str {
        match self {
            Pattern::Kept => "kept",
            Pattern::HandedOn => "handed-on",
        }
    }

    fn depth(self, workers: usize) -> u32 {
        match self {
            Pattern::Kept => DEPTH.max(2 * workers as u32),
            Pattern::HandedOn => (workers as u32 / 2).max(1),
        }
    }
}

impl Structure {
    /// All of them, ours first.
    pub const ALL: [Structure; 3] = [Structure::TokenTree, Structure::AtomicCounter, Structure::ScalableBitmap];

    /// Its name in the report.
    pub const fn name(self) -> &'static str {
        match self {
            Structure::TokenTree => "token-tree",
            Structure::AtomicCounter => "atomic-counter",
            Structure::ScalableBitmap => "scalable-bitmap",
        }
    }

    /// Operations of `cpus.len()` pinned workers in `milliseconds`, and the time they took in ns.
    ///
    /// # Errors
    /// One sentence, if a worker cannot be pinned.
    pub fn time(
        self,
        pattern: Pattern,
        cpus: &[Cpu],
        topology: &Topology,
        milliseconds: u64,
    ) -> Result<(u64, u64), String> {
        let depth = pattern.depth(cpus.len());
        let ready = mqfq_sched::ready_set::ReadySet::new(topology);
        match self {
            Structure::TokenTree => {
                let tree = mqfq_sched::token_tree::TokenTree::new(topology, depth);
                time(&Load { tokens: &tree, ready: &ready, pattern, depth }, cpus, milliseconds)
            }
            Structure::AtomicCounter => {
                let counter = AtomicCounter::<AtomicU64>::new(depth);
                time(&Load { tokens: &counter, ready: &ready, pattern, depth }, cpus, milliseconds)
            }
            Structure::ScalableBitmap => {
                let bitmap = ScalableBitmap::<AtomicU64>::new(depth, cpus.len());
                time(&Load { tokens: &bitmap, ready: &ready, pattern, depth }, cpus, milliseconds)
            }
        }
    }

    /// Cost of an operation, in accesses and lines.
    pub fn count(self, pattern: Pattern, topology: &Topology) -> Counted {
        let workers = topology.hctx_count();
        let depth = pattern.depth(workers);
        let topology = super::counted_topology(topology);
        let ready = mqfq_sched_watched::ready_set::ReadySet::new(&topology);
        match self {
            Structure::TokenTree => {
                let tree = mqfq_sched_watched::token_tree::TokenTree::new(&topology, depth);
                count(&Load { tokens: &tree, ready: &ready, pattern, depth }, workers)
            }
            Structure::AtomicCounter => {
                let counter = AtomicCounter::<watched::AtomicU64>::new(depth);
                count(&Load { tokens: &counter, ready: &ready, pattern, depth }, workers)
            }
            Structure::ScalableBitmap => {
                let bitmap = ScalableBitmap::<watched::AtomicU64>::new(depth, workers);
                count(&Load { tokens: &bitmap, ready: &ready, pattern, depth }, workers)
            }
        }
    }
}

struct Load<'a, T, R> {
    tokens: &'a T,
    ready: &'a R,
    pattern: Pattern,
    depth: u32,
}

/// A worker and the tokens of its requests on the device, oldest first.
struct Worker<T: Tokens> {
    number: usize,
    hint: T::Hint,
    held: VecDeque<T::Held>,
}

impl<T: Tokens, R: Ready> Load<'_, T, R> {
    /// The workers with their first tokens; in `handed-on` the others wait.
    fn workers(&self, count: usize) -> Vec<Worker<T>> {
        let each = match self.pattern {
            Pattern::Kept => (self.depth as usize / 2 / count).max(1),
            Pattern::HandedOn => 1,
        };
        let mut workers = Vec::new();
        for number in 0..count {
            let mut worker = Worker { number, hint: self.tokens.hint(number), held: VecDeque::with_capacity(each + 1) };
            let first = (0..each).map_while(|_| self.tokens.acquire(number, &mut worker.hint));
            worker.held.extend(first);
            if worker.held.is_empty() {
                self.ready.mark(number);
            }
            workers.push(worker);
        }
        workers
    }

    /// The oldest request of `worker` completes. `wake` is called for each worker that must look for a token.
    fn complete(&self, worker: &mut Worker<T>, mut wake: impl FnMut(usize)) {
        let token = worker.held.pop_front().expect("a request is on the device");
        let number = worker.number;
        if self.pattern == Pattern::HandedOn
            && let Some(nearest) = self.ready.take_nearest(number)
        {
            self.tokens.release_toward(number, nearest, token);
            wake(nearest);
            let free = self.tokens.rest(number);
            (0..free).map_while(|_| self.ready.take_nearest(number)).for_each(wake);
            self.ready.mark(number);
            return;
        }
        self.tokens.release_own(number, token);
        self.take(worker);
    }

    /// `worker` looks for a token: it has been woken, or has just given one back. Without one it waits.
    fn take(&self, worker: &mut Worker<T>) {
        let number = worker.number;
        let mut token = self.tokens.acquire(number, &mut worker.hint);
        if token.is_none() {
            // Ends with a fence; then once more, as in `mqfq`.
            self.ready.mark(number);
            token = self.tokens.acquire(number, &mut worker.hint);
            if token.is_some() {
                self.ready.unmark(number);
            }
        }
        worker.held.extend(token);
    }

    fn give_all_back(&self, worker: Worker<T>) {
        worker.held.into_iter().for_each(|token| self.tokens.release_own(worker.number, token));
    }
}

fn time<T, R>(load: &Load<'_, T, R>, cpus: &[Cpu], milliseconds: u64) -> Result<(u64, u64), String>
where
    T: Tokens<Held: Send, Hint: Send>,
    R: Ready,
{
    let workers: Vec<_> =
        load.workers(cpus.len()).into_iter().map(|worker| std::sync::Mutex::new(Some(worker))).collect();
    let woken: Vec<Padded<AtomicBool>> = cpus.iter().map(|_| Padded::default()).collect();
    let work = |number: usize, stop: &Stop| {
        let mut worker = workers[number].lock().expect("nobody panics").take().expect("one thread per worker");
        let mut operations = 0_u64;
        while !stop.is_due() {
            if !worker.held.is_empty() {
                // Release: pairs with the Acquire below; a woken worker sees the token that was put there for it.
                load.complete(&mut worker, |other| woken[other].store(true, Ordering::Release));
                operations += 1;
            // Relaxed: a look; Acquire: pairs with the Release above. (In `kept` no worker wakes another: a bitmap's
            // search can miss a bit, and is made again.)
            } else if load.pattern == Pattern::Kept
                || woken[number].load(Ordering::Relaxed) && woken[number].swap(false, Ordering::Acquire)
            {
                load.take(&mut worker);
            } else {
                std::hint::spin_loop();
            }
        }
        load.give_all_back(worker);
        operations
    };
    let (operations, elapsed_ns) = threads::run(cpus, milliseconds, work, || ())?;
    assert_eq!(load.tokens.free(), i64::from(load.depth), "tokens were lost or made");
    Ok((operations.iter().sum(), elapsed_ns))
}

fn count<T: Tokens, R: Ready>(load: &Load<'_, T, R>, count: usize) -> Counted {
    const WARM_UP: usize = 500;
    const OPERATIONS: usize = 4000;
    let mut lines = Directory::default();
    let mut workers = load.workers(count);
    let (mut accesses, mut woken) = (Vec::new(), Vec::new());
    let (mut turn, mut operations) = (0, 0);
    while operations < WARM_UP + OPERATIONS {
        let number = turn % count;
        turn += 1;
        if workers[number].held.is_empty() {
            continue;
        }
        let mut see = |worker: usize, accesses: &[Access]| {
            if operations < WARM_UP { lines.see(worker, accesses) } else { lines.count(worker, accesses) }
        };
        watched::record(&mut accesses, || load.complete(&mut workers[number], |other| woken.push(other)));
        see(number, &accesses);
        for other in woken.drain(..) {
            watched::record(&mut accesses, || load.take(&mut workers[other]));
            see(other, &accesses);
        }
        if operations >= WARM_UP {
            lines.end_operation();
        }
        operations += 1;
    }
    workers.into_iter().for_each(|worker| load.give_all_back(worker));
    assert_eq!(load.tokens.free(), i64::from(load.depth), "tokens were lost or made");
    lines.counted()
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqfq_sched::ready_set::ReadySet;
    use mqfq_sched::token_tree::TokenTree;
    use std::sync::atomic::AtomicI64;

    const THREADS: usize = 4;

    /// Threads take and give back as fast as they can; never more than D are out, and in the end all are back.
    fn never_more_than_there_are<T: Tokens>(tokens: &T, depth: i64) {
        let out = AtomicI64::new(0);
        std::thread::scope(|scope| {
            for worker in 0..THREADS {
                let out = &out;
                scope.spawn(move || {
                    let mut hint = tokens.hint(worker);
                    let mut held = Vec::new();
                    for step in 0..20_000 {
                        // Now and then all go back, so that tokens move between workers.
                        if step % 7 == worker {
                            while let Some(token) = held.pop() {
                                out.fetch_sub(1, Ordering::SeqCst);
                                tokens.release_toward(worker, (worker + step) % THREADS, token);
                            }
                            tokens.rest(worker);
                        } else if let Some(token) = tokens.acquire(worker, &mut hint) {
                            let now = out.fetch_add(1, Ordering::SeqCst) + 1;
                            assert!(now <= depth, "{now} tokens of {depth} are out");
                            held.push(token);
                        }
                    }
                    out.fetch_sub(held.len() as i64, Ordering::SeqCst);
                    held.into_iter().for_each(|token| tokens.release_own(worker, token));
                });
            }
        });
        assert_eq!((tokens.free(), out.into_inner()), (depth, 0));
    }

    #[test]
    fn tokens_are_conserved_and_bounded_under_threads() {
        for depth in [1, 3, 8] {
            never_more_than_there_are(&AtomicCounter::<AtomicU64>::new(depth), i64::from(depth));
            never_more_than_there_are(&ScalableBitmap::<AtomicU64>::new(depth, THREADS), i64::from(depth));
            never_more_than_there_are(&TokenTree::new(&Topology::new(2, 1, 2), depth), i64::from(depth));
        }
    }

    /// Workers hand tokens on until each has completed its share: a token or a wake-up lost stops them for good.
    fn nobody_waits_for_ever<T: Tokens<Held: Send, Hint: Send>>(tokens: &T, depth: u32) {
        let ready = ReadySet::new(&Topology::new(2, 1, 2));
        let load = Load { tokens, ready: &ready, pattern: Pattern::HandedOn, depth };
        let woken: Vec<Padded<AtomicBool>> = (0..THREADS).map(|_| Padded::default()).collect();
        let completed = AtomicI64::new(0);
        std::thread::scope(|scope| {
            for mut worker in load.workers(THREADS) {
                let (load, woken, completed) = (&load, &woken, &completed);
                scope.spawn(move || {
                    while completed.load(Ordering::SeqCst) < 20_000 {
                        if !worker.held.is_empty() {
                            load.complete(&mut worker, |other| woken[other].store(true, Ordering::SeqCst));
                            completed.fetch_add(1, Ordering::SeqCst);
                        } else if woken[worker.number].swap(false, Ordering::SeqCst) {
                            load.take(&mut worker);
                        } else {
                            std::thread::yield_now();
                        }
                    }
                    load.give_all_back(worker);
                });
            }
        });
        assert_eq!(tokens.free(), i64::from(depth));
    }

    #[test]
    fn a_token_that_is_handed_on_is_found() {
        for depth in [1, 2] {
            nobody_waits_for_ever(&AtomicCounter::<AtomicU64>::new(depth), depth);
            nobody_waits_for_ever(&ScalableBitmap::<AtomicU64>::new(depth, THREADS), depth);
            nobody_waits_for_ever(&TokenTree::new(&Topology::new(2, 1, 2), depth), depth);
        }
    }

    #[test]
    fn a_worker_that_keeps_its_tokens_shares_a_line_only_in_the_counter() {
        let topology = Topology::new(2, 4, 2);
        let transfers = |structure: Structure| structure.count(Pattern::Kept, &topology).line_transfers_per_operation;
        assert_eq!(transfers(Structure::TokenTree), 0.0);
        assert_eq!(transfers(Structure::ScalableBitmap), 0.0);
        // One per operation: it comes, is written twice, and goes.
        assert!(transfers(Structure::AtomicCounter) >= 1.0);
    }
}
