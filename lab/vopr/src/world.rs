//! Time, and whose turn it is: the one thread on which workers and clients take steps.
//!
//! Which of the workers that have something to do goes next is the seed's choice, so a seed is one order of events.
//! A caller that waits for an answer of a worker (the engine, when something changes) has the world go on: see
//! [`mqfq_blk::worker::steps`].

use crate::host::VirtualHost;
use crate::net::{self, Net};
use crate::script::{Config, TURN_NS};
use mqfq_blk::random::Random;
use mqfq_blk::worker::Worker;
use mqfq_blk::worker::steps::Steps;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Steps without any progress in time after which a world counts as spinning.
const SPINS_MAX: u32 = 200_000;

thread_local! {
    static NOW_NS: Cell<u64> = const { Cell::new(0) };
    static WORLD: RefCell<Option<Rc<World>>> = const { RefCell::new(None) };
}

/// The time, ns.
pub fn now_ns() -> u64 {
    NOW_NS.get()
}

/// Time passes.
pub fn pass(ns: u64) {
    NOW_NS.set(NOW_NS.get() + ns);
}

/// Steps for the workers of the engine on this thread.
pub const STEPS: Steps = Steps { now_ns, go_on };

type Seat = Option<Box<Worker<VirtualHost>>>;

/// Sockets, time and steps, which the server's workers and its clients share.
pub struct World {
    /// Sockets.
    pub net: RefCell<Net>,
    workers: RefCell<Vec<Seat>>,
    random: RefCell<Random>,
    /// Called between steps: clients read what came, and say more.
    clients: RefCell<Option<Box<dyn FnMut() -> bool>>>,
    steps: Cell<u64>,
    /// Time of a worker's turn, ns, so that later requests have a later time.
    pub turn_ns: u64,
}

impl World {
    /// A world at time 0, without workers, and the one of this thread from now on.
    pub fn begin(config: &Config) -> Rc<World> {
        NOW_NS.set(0);
        let world = Rc::new(World {
            net: RefCell::default(),
            workers: RefCell::default(),
            random: RefCell::new(Random::new(config.get("seed"))),
            clients: RefCell::new(None),
            steps: Cell::new(0),
            turn_ns: config.get(TURN_NS),
        });
        WORLD.set(Some(world.clone()));
        world
    }

    /// These are the workers.
    pub fn employ(&self, workers: Vec<Worker<VirtualHost>>) {
        *self.workers.borrow_mut() = workers.into_iter().map(|worker| Some(Box::new(worker))).collect();
    }

    /// The workers, which are no longer the world's.
    pub fn dismiss(&self) -> Vec<Worker<VirtualHost>> {
        std::mem::take(&mut *self.workers.borrow_mut()).into_iter().flatten().map(|worker| *worker).collect()
    }

    /// A look at each worker.
    pub fn look(&self, mut look: impl FnMut(usize, &Worker<VirtualHost>)) {
        let workers = self.workers.borrow();
        workers.iter().enumerate().for_each(|(at, worker)| look(at, worker.as_ref().expect("between steps")));
    }

    /// `clients` is called between steps; it says whether it did anything.
    pub fn serve(&self, clients: Box<dyn FnMut() -> bool>) {
        *self.clients.borrow_mut() = Some(clients);
    }

    /// Steps of workers so far.
    pub fn steps(&self) -> u64 {
        self.steps.get()
    }

    /// Lets the clients read new messages and go on.
    fn tell_clients(&self) -> bool {
        let Some(mut clients) = self.clients.borrow_mut().take() else { return false };
        let has_moved = clients();
        *self.clients.borrow_mut() = Some(clients);
        has_moved
    }

    /// One step of a worker that has something to do. False: none has.
    fn step(&self) -> bool {
        let mut workers = self.workers.borrow_mut();
        let count = workers.len();
        if count == 0 {
            return false;
        }
        let first = self.random.borrow_mut().below(count as u64) as usize;
        for at in 0..count {
            let at = (first + at) % count;
            let Some(mut worker) = workers[at].take() else { continue };
            if !worker.host_mut().is_ready() {
                workers[at] = Some(worker);
                continue;
            }
            // Its turn may ask for the world's other parts.
            drop(workers);
            self.steps.set(self.steps.get() + 1);
            worker.host_mut().wake();
            let goes_on = worker.step();
            assert!(goes_on, "a worker was told to stop");
            self.workers.borrow_mut()[at] = Some(worker);
            return true;
        }
        false
    }

    fn has_ready(&self) -> bool {
        self.workers.borrow_mut().iter_mut().flatten().any(|worker| worker.host_mut().is_ready())
    }

    fn next_ns(&self) -> Option<u64> {
        let workers = self.workers.borrow();
        workers.iter().flatten().filter_map(|worker| worker.host().next_ns()).min()
    }
}

/// See [`Steps::go_on`].
pub fn go_on(until_ns: u64) -> bool {
    let world = WORLD.with_borrow(|world| world.clone()).expect("a world was begun on this thread");
    // Both: a client that never falls silent must not keep the workers from their turns.
    let has_stepped = world.step();
    let has_moved = world.tell_clients();
    if has_stepped || has_moved {
        return now_ns() < until_ns;
    }
    // A client that is dropped rings by itself.
    net::stir();
    if world.has_ready() {
        return now_ns() < until_ns;
    }
    match world.next_ns() {
        Some(next_ns) if next_ns <= until_ns => {
            NOW_NS.set(now_ns().max(next_ns));
            true
        }
        _ => false,
    }
}

/// Goes on until nothing has anything to do, or for `ns`. True: nothing has.
pub fn settle(ns: u64) -> bool {
    let until_ns = now_ns() + ns;
    let (mut spins, mut last_ns) = (0, now_ns());
    while go_on(until_ns) {
        spins = if now_ns() > last_ns { 0 } else { spins + 1 };
        last_ns = now_ns();
        assert!(spins < SPINS_MAX, "the server spins at {last_ns} ns");
    }
    now_ns() < until_ns
}

/// Goes on for `ns`, whether anything happens or not.
pub fn run(ns: u64) {
    let until_ns = now_ns() + ns;
    while go_on(until_ns) {}
    NOW_NS.set(now_ns().max(until_ns));
}
