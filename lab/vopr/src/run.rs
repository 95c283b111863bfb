//! Runs a script: the world, the server and its clients, one step after another, and what must hold after each.
//!
//! | invariant | how it is looked at |
//! |---|---|
//! | I10 each request ends once | a reply names a request under way (`nbd.rs`, `guest.rs`); nothing is left in a server that is asked for nothing (`Server::assert_idle`); no client waits for ever (`Run::settle`) |
//! | I11 no tenant reads or writes another's bytes | each sector's value names its tenant, its write and its place (`oracle.rs`); no request that came after a resize ends well beyond it |
//! | I12 a change is made whole or not at all | policy and weights after each change (`server.rs`) |
//! | I14 a foreign fault is local | requests staged and in flight, payload memory, after each step (`Server::assert_bounds`); payload memory of a server without requests; what hostile guests get hold of (`hostile_guest.rs`) |
//! | I10 through restarts | a guest's area in flight: `guest.rs` |
//! | flush and FUA | what a power cut may leave (`oracle.rs`) |

use crate::guest::Guest;
use crate::hostile::Hostile;
use crate::hostile::{Files, Harm, HostileGuest};
use crate::managed::Run as Managed;
use crate::nbd::{Counts, Manners, NbdClient};
use crate::net::SharedPipe;
use crate::oracle::Oracle;
use crate::script::{CLIENTS_EACH, Config, MANAGED, Script, Step};
use crate::server::{self, SECTORS, Server, Site};
use crate::world::{self, World};
use mqfq_blk::random::Random;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

/// For all messages of a crowd of front-ends to be read, beside requests of others, and then for the descriptors of
/// those that were refused to be closed, ns.
const CROWD_NS: (u64, u64) = (20_000_000, 2_000_000);

/// Both times for one guest, ns: less than a round of the phases that are compared.
const GUEST_NS: (u64, u64) = (2_000_000, 100_000);

/// Longest that a drive here takes for a request whatever is wrong with it, and that a cap delays one, ns; and then the
/// time after which a connection looks whether its client got on (`stall-s`), of which the last reply can be the start.
const SETTLE_NS: u64 = 60_000_000_000 + 60_000_000_000;

/// Size of each read of [`crate::nbd::NbdClient::want_all`].
const CHECK_SECTORS: usize = 16;

/// Outcome of a run.
#[derive(Clone, Copy, Default, Debug)]
pub struct Outcome {
    /// Sum over all clients.
    pub counts: Counts,
    /// Steps of workers.
    pub turns: u64,
    /// Virtual time, ns.
    pub now_ns: u64,
    /// Servers that were killed, cut off, and replaced.
    pub kills: u64,
    /// Power cuts, and what they might have taken: sectors' values.
    pub cuts: u64,
    /// Values that nothing had covered at the cuts.
    pub uncovered: u64,
    /// Upgrades.
    pub upgrades: u64,
    /// Changes of policies, weights, caps, sizes, and tenants; or proposals.
    pub changes: u64,
    /// Proposals that were refused.
    pub refused: u64,
}

/// Why a run ended early.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The invariant, or the panic.
    pub what: String,
    /// The step, counted from 0, at which it was noticed.
    pub step: usize,
    /// Requests that had been answered by then.
    pub requests: u64,
}

/// All clients, which the world tells between its steps.
#[derive(Default)]
struct Clients {
    nbd: Vec<NbdClient>,
    guests: Vec<Guest>,
    hostile: Vec<Hostile>,
    hostile_guests: Vec<HostileGuest>,
}

impl Clients {
    fn turn(&mut self) -> bool {
        let mut has_moved = false;
        self.nbd.iter_mut().for_each(|client| has_moved |= client.turn());
        self.guests.iter_mut().for_each(|guest| has_moved |= guest.turn());
        self.hostile.iter_mut().for_each(|hostile| has_moved |= hostile.turn());
        self.hostile.retain(|hostile| !hostile.is_over());
        self.hostile_guests.iter_mut().for_each(|guest| has_moved |= guest.turn());
        self.hostile_guests.retain(|guest| !guest.is_over());
        has_moved
    }

    fn counts(&self) -> Counts {
        let all = self.nbd.iter().map(|client| client.counts).chain(self.guests.iter().map(|guest| guest.counts));
        all.fold(Counts::default(), Counts::plus)
    }
}

struct Run {
    config: Config,
    world: Rc<World>,
    site: Rc<Site>,
    server: Option<Server>,
    clients: Rc<RefCell<Clients>>,
    /// Oracles by tenant: NBD's, then guests' (the hostile tenant between them has none).
    oracles: Vec<Rc<RefCell<Oracle>>>,
    /// Files of hostile guests, once there was one.
    files: Option<Rc<Files>>,
    outcome: Outcome,
}

/// Runs it all.
///
/// # Errors
/// What was noticed first.
pub fn run(script: &Script) -> Result<Outcome, Failure> {
    let at = RefCell::new((0, 0));
    let ran = catch_unwind(AssertUnwindSafe(|| {
        if script.config.get(MANAGED) > 0 {
            let mut run = Managed::new(script);
            for (number, step) in script.steps.iter().enumerate() {
                *at.borrow_mut() = (number, run.counts().good);
                run.step(step);
            }
            return run.end();
        }
        let mut run = Run::new(script);
        for (number, step) in script.steps.iter().enumerate() {
            *at.borrow_mut() = (number, run.clients.try_borrow().map_or(0, |clients| clients.counts().good));
            run.step(step);
            run.look();
        }
        run.end()
    }));
    ran.map_err(|panic| {
        let what = panic.downcast_ref::<String>().cloned();
        let what = what.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let (step, requests) = *at.borrow();
        Failure { what: what.unwrap_or_else(|| "a panic without words".to_owned()), step, requests }
    })
}

impl Run {
    fn new(script: &Script) -> Run {
        let config = script.config.clone();
        let world = World::begin(&config);
        let site = Site::new(&config, world.clone());
        let server = Server::start(&site);
        let mut random = Random::new(config.get("seed") ^ 0x5eed);
        let mut clients = Clients::default();
        let mut oracles = Vec::new();
        for tenant in 0..config.count("tenants") {
            let oracle = Rc::new(RefCell::new(Oracle::new(tenant as u8 + 1, SECTORS)));
            // The first client has most, so that it can write more at once than a connection takes in one piece.
            let bounds = [0, SECTORS * 3 / 4, SECTORS];
            for client in 0..CLIENTS_EACH {
                let manners = Manners {
                    structured: random.chance(32768),
                    depth: 1 << random.below(7),
                    piece_bytes: if random.chance(8192) { 1 + random.below(700) as usize } else { 1 << 20 },
                };
                let name = format!("client {} of {}", client, server::name(tenant));
                let region = (bounds[client], bounds[client + 1]);
                let mut client = NbdClient::new(name, server::name(tenant), oracle.clone(), region, manners);
                client.may_fail = script.may_fail();
                clients.nbd.push(client);
            }
            oracles.push(oracle);
        }
        for guest in 0..config.count("guests") {
            let tenant = config.count("tenants") + 1 + guest;
            let oracle = Rc::new(RefCell::new(Oracle::new(tenant as u8 + 1, SECTORS)));
            let mut guest = Guest::new(server::name(tenant), oracle.clone(), random.next_u64());
            guest.may_fail = script.may_fail();
            clients.guests.push(guest);
            oracles.push(oracle);
        }
        let clients = Rc::new(RefCell::new(clients));
        let told = clients.clone();
        world.serve(Box::new(move || told.borrow_mut().turn()));
        Run { config, world, site, server: Some(server), clients, oracles, files: None, outcome: Outcome::default() }
    }

    fn server(&mut self) -> &mut Server {
        self.server.as_mut().expect("there is a server between steps")
    }

    /// A tenant of NBD's, by a step's number.
    fn tenant(&self, number: u64) -> usize {
        number as usize % self.config.count("tenants")
    }

    fn step(&mut self, step: &Step) {
        let [first, second, third] = step.numbers;
        let clients = self.clients.borrow().nbd.len();
        let client = first as usize % clients;
        let guests = self.config.count("guests");
        match step.name {
            "connect" => self.connect(client),
            "leave" => self.clients.borrow_mut().nbd[client].leave(second > 0),
            "io" => {
                self.clients.borrow_mut().nbd[client].want(second, &mut Random::new(third));
                // A moment, so that it begins.
                world::run(1_000);
            }
            "stable" => {
                self.clients.borrow_mut().nbd[client].want_stable(second, &mut Random::new(third));
                world::run(1_000);
            }
            "guest" if guests > 0 => self.plug(first as usize % guests),
            "unplug" if guests > 0 => self.clients.borrow_mut().guests[first as usize % guests].leave(),
            "drive" if guests > 0 => {
                self.clients.borrow_mut().guests[first as usize % guests].want(second, &mut Random::new(third));
                world::run(1_000);
            }
            "run" => world::run(first),
            "settle" => self.settle(),
            "check" => self.check(),
            "hostile" => self.invade(first, second),
            "stall" => self.site.device.stall_until(world::now_ns() + first),
            "cut" => self.cut(),
            "kill" => self.kill(false),
            "power" => self.kill(true),
            "upgrade" => self.upgrade(),
            _ => self.change(step),
        }
    }

    fn change(&mut self, step: &Step) {
        let [first, second, _] = step.numbers;
        let tenant = self.tenant(first);
        self.outcome.changes += 1;
        match step.name {
            "policy" => self.server().set_policy(Config::policy(first), second as u32),
            "weight" => self.server().set_weight(tenant, second),
            "cap" => self.server().set_cap(tenant, [None, Some(2_000), Some(100_000)][second as usize % 3]),
            "resize" => {
                let sectors = SECTORS / 4 * (second as usize % 4 + 1);
                // One that grows may be used while the server still waits; one that shrinks is shorter when it says so.
                let before = self.oracles[tenant].borrow().limited();
                if sectors > before {
                    self.oracles[tenant].borrow_mut().limit(sectors);
                }
                if self.server().resize(tenant, sectors as u64 * 512) && sectors < before {
                    self.oracles[tenant].borrow_mut().limit(sectors);
                }
            }
            "readonly" => {
                let is_on = second > 0;
                if !is_on {
                    self.oracles[tenant].borrow_mut().read_only(false);
                }
                if self.server().set_read_only(tenant, is_on) && is_on {
                    self.oracles[tenant].borrow_mut().read_only(true);
                }
            }
            "remove" => self.server().remove(tenant),
            "add" if !self.server().has(tenant) => {
                self.server().add(tenant);
                let mut oracle = self.oracles[tenant].borrow_mut();
                oracle.limit(SECTORS);
                oracle.read_only(false);
            }
            _ => {}
        }
    }

    fn pipe(&mut self, tenant: usize, piece_bytes: usize) -> SharedPipe {
        let path = self.server().path_of(tenant);
        self.world.net.borrow_mut().connect(path, piece_bytes)
    }

    fn connect(&mut self, client: usize) {
        let (is_away, manners) = {
            let clients = self.clients.borrow();
            (clients.nbd[client].is_away(), clients.nbd[client].manners())
        };
        if is_away {
            let pipe = self.pipe(client / CLIENTS_EACH, manners.piece_bytes);
            self.clients.borrow_mut().nbd[client].connect(pipe);
            world::run(5_000);
        }
    }

    fn plug(&mut self, guest: usize) {
        if self.clients.borrow().guests[guest].is_away() {
            let pipe = self.pipe(self.config.count("tenants") + 1 + guest, 1 << 20);
            self.clients.borrow_mut().guests[guest].plug(pipe);
            world::run(5_000);
        }
    }

    fn invade(&mut self, seed: u64, kind: u64) {
        if kind > 2 {
            return self.invade_as_guests(seed, if kind == 3 { Harm::Looks } else { Harm::Lies });
        }
        let tenant = self.config.count("tenants");
        let at = if kind == 2 && self.config.count("guests") > 0 { tenant + 1 } else { tenant };
        let pipe = self.pipe(at, 1 << 20);
        self.clients.borrow_mut().hostile.push(Hostile::new(pipe, seed, kind, &server::name(tenant)));
        world::run(20_000);
    }

    /// A crowd of front-ends that only look, or one that has a guest. Every fourth leaves soon.
    fn invade_as_guests(&mut self, seed: u64, harm: Harm) {
        let looks = harm == Harm::Looks;
        let files = self.files.get_or_insert_with(Files::new).clone();
        if !looks {
            // One front-end at a time has the disk.
            self.clients.borrow_mut().hostile_guests.iter_mut().for_each(HostileGuest::leave);
            world::run(100_000);
        }
        let path = self.server().hostile_path();
        for number in 0..if looks { 8 + seed % 17 } else { 1 } {
            let pipe = self.world.net.borrow_mut().connect(path.clone(), 1 << 20);
            let guest = HostileGuest::new(pipe, &files, seed ^ number << 32, harm);
            self.clients.borrow_mut().hostile_guests.push(guest);
        }
        let (reads_ns, closes_ns) = if looks { CROWD_NS } else { GUEST_NS };
        world::run(reads_ns);
        // The kernel tells the clients of sockets that were shut down.
        self.world.net.borrow().hang_up();
        world::run(closes_ns);
        files.assert_bounded();
        if seed.is_multiple_of(4) {
            self.clients.borrow_mut().hostile_guests.iter_mut().for_each(HostileGuest::leave);
        }
    }

    /// Lets all requests end that can; no client waits after that.
    fn settle(&mut self) {
        let is_over = world::settle(SETTLE_NS);
        assert!(is_over, "nobody is silent after {SETTLE_NS} ns");
        // A lost command keeps the requests that want its place; where it has no timeout, that is the drive's fault.
        let is_stuck = self.site.device.forgotten() > 0;
        for client in &self.clients.borrow().nbd {
            let left = client.under_way();
            assert!(client.is_away() || left == 0, "nobody waits for ever (I10): {left} requests of {client}");
            let is_heard = client.is_served() && client.is_idle();
            assert!(client.is_away() || is_heard || is_stuck, "nobody waits for ever (I10): {client} is not served");
        }
        for guest in &self.clients.borrow().guests {
            let left = guest.under_way();
            assert!(guest.is_away() || left == 0, "nobody waits for ever (I10): {left} requests of {guest}");
            assert!(
                guest.is_away() || guest.is_idle() || is_stuck,
                "nobody waits for ever (I10): {guest} is not served"
            );
        }
        self.rest();
        self.outcome_is_idle();
    }

    /// Requests that clients left behind are over.
    fn rest(&self) {
        self.oracles.iter().for_each(|oracle| oracle.borrow_mut().rest());
    }

    fn outcome_is_idle(&mut self) {
        let has_hostile = !self.clients.borrow().hostile.is_empty();
        let server = self.server();
        server.assert_idle();
        let held = server.held_bytes();
        // A hostile client's incomplete request may be held until it goes. A guest's is not, whatever it breaks.
        assert!(has_hostile || held == 0, "{held} bytes of payload are held and nobody asks for anything (I14)");
    }

    /// Every client reads everything.
    fn check(&mut self) {
        let [tenants, clients] = [self.config.count("tenants"), self.clients.borrow().nbd.len()];
        self.clients.borrow_mut().hostile.iter_mut().for_each(Hostile::leave);
        self.clients.borrow_mut().hostile_guests.iter_mut().for_each(HostileGuest::leave);
        (0..tenants).for_each(|tenant| self.server().set_cap(tenant, None));
        self.settle();
        self.world.net.borrow_mut().forget();
        self.files.iter().for_each(|files| files.assert_back());
        let good = |run: &Run, tenant: usize| run.clients.borrow().nbd[tenant * CLIENTS_EACH].counts.good;
        let before: Vec<u64> = (0..tenants).map(|tenant| good(self, tenant)).collect();
        for client in (0..clients).step_by(CLIENTS_EACH) {
            self.connect(client);
            self.clients.borrow_mut().nbd[client].want_all();
        }
        for guest in 0..self.config.count("guests") {
            self.plug(guest);
            self.clients.borrow_mut().guests[guest].want_all();
        }
        self.settle();
        // A server that closes every connection or fails every read shows no wrong byte either.
        for (tenant, before) in before.into_iter().enumerate() {
            let wanted = (self.oracles[tenant].borrow().limited() / CHECK_SECTORS) as u64;
            let is_due = self.server().has(tenant) && !self.config.has_faults();
            let read = good(self, tenant) - before;
            assert!(!is_due || read >= wanted, "tenant {tenant}: {read} of {wanted} reads of all bytes ended well");
        }
    }

    fn cut(&mut self) {
        let mut uncovered = 0;
        let nbd = self.config.count("tenants");
        for (number, oracle) in self.oracles.iter().enumerate() {
            let mut oracle = oracle.borrow_mut();
            uncovered += oracle.uncovered() as u64;
            if self.config.get("cache") > 0 {
                // The hostile tenant has no oracle.
                let tenant = if number < nbd { number } else { number + 1 };
                oracle.cut(|sector, bytes| self.site.may_lose(tenant, sector, bytes));
            }
        }
        self.site.device.power_cut();
        self.outcome.cuts += 1;
        self.outcome.uncovered += uncovered;
    }

    fn kill(&mut self, with_power: bool) {
        self.server.take().expect("there is one").kill();
        // Clients notice that they are alone before anything else is: else they would take the next server for this.
        self.clients.borrow_mut().turn();
        self.clients.borrow_mut().guests.iter_mut().for_each(Guest::lost);
        self.rest();
        if with_power {
            self.cut();
        }
        for oracle in &self.oracles {
            let mut oracle = oracle.borrow_mut();
            oracle.limit(SECTORS);
            oracle.read_only(false);
        }
        self.outcome.kills += 1;
        self.server = Some(Server::start(&self.site));
        let guests = self.config.count("guests");
        (0..guests).for_each(|guest| self.plug(guest));
    }

    fn upgrade(&mut self) {
        let server = self.server.take().expect("there is one");
        let (server, upgraded) = server.upgrade();
        self.server = Some(server);
        self.outcome.upgrades += u64::from(upgraded.is_ok());
        world::run(5_000);
        let guests = self.config.count("guests");
        (0..guests).for_each(|guest| self.plug(guest));
    }

    fn look(&mut self) {
        self.server().assert_bounds();
        self.world.net.borrow_mut().forget();
    }

    fn end(mut self) -> Outcome {
        let counts = self.clients.borrow().counts();
        if let Some(server) = self.server.take() {
            server.kill();
        }
        Outcome { counts, turns: self.world.steps(), now_ns: world::now_ns(), ..self.outcome }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqfq_blk::PolicyKind;

    const CONFIG: &str = "config seed 1 workers 2 policy 0 depth 8 tenants 1 guests 0 split 0 sq 0 cache 0 \
                          reorder 0 error 0 torn 0 stall 0 lose 0 slow 0 abort 3 staged 64 memory 67108864";

    #[test]
    fn hostile_guests_come_as_far_as_the_bounds_that_are_looked_at() {
        let mut run = Run::new(&Script::parse(CONFIG).unwrap());
        run.invade_as_guests(17 + 16, Harm::Looks);
        let copies = |run: &Run| run.files.as_ref().map(|files| files.copies());
        assert_eq!(copies(&run), Some(8 * 2 * 16), "24 looked, and 8 of them have a place");
        run.check();
        assert_eq!(copies(&run), Some(0));
        let mapped_bytes = (1..20).map(|seed| {
            run.invade_as_guests(seed * 4 + 1, Harm::Lies);
            run.clients.borrow().hostile_guests.last().and_then(HostileGuest::mapped_bytes)
        });
        let mapped_bytes: Vec<u64> = mapped_bytes.flatten().collect();
        assert!(mapped_bytes.len() > 10, "{} of 19 have offered requests", mapped_bytes.len());
        assert!(mapped_bytes.iter().any(|bytes| *bytes > 1 << 40), "{mapped_bytes:?}");
        run.check();
    }

    #[test]
    fn guests_that_break_their_rings_cost_their_neighbours_neither_shares_nor_requests() {
        let config = CONFIG.replace("policy 0", "policy 6").replace("guests 0", "guests 2");
        let mut run = Run::new(&Script::parse(&config).unwrap());
        assert_eq!(run.server().policy(), PolicyKind::Mqfq);
        for guest in 0..2 {
            run.server().set_weight(2 + guest, [100, 300][guest]);
            run.plug(guest);
            run.clients.borrow_mut().guests[guest].want_reads(1 << 20);
        }
        const ROUND_NS: u64 = 3_000_000;
        // Ends of each, and its longest wait.
        let mut part = |rounds: u64, harm: bool| {
            run.clients.borrow_mut().guests.iter_mut().for_each(|guest| {
                (guest.counts, guest.longest_ns) = Default::default();
            });
            let start_ns = world::now_ns();
            for round in 1..=rounds {
                if harm {
                    run.invade_as_guests(round * 4 + 1, Harm::Breaks);
                    let has_broken = run.clients.borrow().hostile_guests.iter().any(HostileGuest::has_spoilt);
                    assert!(has_broken, "round {round}: its guest did nothing");
                }
                while world::now_ns() < start_ns + round * ROUND_NS {
                    // For nothing.
                    run.clients.borrow().hostile_guests.iter().for_each(HostileGuest::kick);
                    world::run(10_000);
                }
            }
            let clients = run.clients.borrow();
            [0, 1].map(|guest: usize| (clients.guests[guest].counts.good, clients.guests[guest].longest_ns))
        };
        part(2, false);
        let (alone, beside) = (part(16, false), part(16, true));
        let said = format!("alone {alone:?}, beside them {beside:?}");
        for [(one, _), (three, _)] in [alone, beside] {
            let ratio = three as f64 / one as f64;
            assert!(one > 1000 && (2.9..3.1).contains(&ratio), "{ratio:.3}: {said}");
        }
        for ((had, wait_ns), (had_beside, wait_beside_ns)) in alone.into_iter().zip(beside) {
            assert!(had_beside * 16 >= had * 15 && wait_beside_ns < 2 * wait_ns, "{said}");
        }
    }
}
