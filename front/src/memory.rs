//! Payload memory: how much a connection, a tenant and the server may hold.
//!
//! A payload is what a request carries: the bytes of a write on their way in, the bytes of a read on their way out. Its
//! memory is taken piece by piece as bytes move ([`PIECE_BYTES_MAX`]), counted here first, and given back when the
//! device or the client has the bytes. A connection that gets none waits; none is refused.
//!
//! # Who may take `n` bytes
//! | holds now | may take if |
//! |---|---|
//! | a connection with nothing | always: so each gets on, one piece at a time, whatever its siblings hold |
//! | a connection with something | `held + n <= ` its limit |
//! | a tenant | `held + n <= ` its limit |
//! | a tenant, up to its guarantee | always |
//! | a tenant, beyond its guarantee | the pool has so much left |
//!
//! Half of the server's memory is guaranteed to tenants in equal parts, each a multiple of 16 KiB and at most 16 GiB;
//! the rest is the pool. While the server runs, tenants come and go and limits change ([`ServerMemory::share`]). A
//! tenant's guarantee lies in one word with what it holds: so each step knows the guarantee that it was made under, and
//! the parts beyond it add up to the pool's through any change. A tenant over its new limit keeps its memory, but gets
//! no more until it holds less.
//!
//! # Example
//! Server 256 MiB, four tenants: each has 256 / 2 / 4 = 32 MiB that no other can take, and 128 MiB are in the
//! pool. A tenant with a limit of 64 MiB that reads no replies holds its 32 MiB and 32 MiB of the pool. Three of them
//! hold 96 MiB of the pool, and the fourth still has 64 MiB.
//!
//! # Bound
//! All payloads together hold at most the server's memory and one piece for each connection.
//!
//! # Orderings
//! Relaxed throughout: the numbers are counts. The memory that they stand for belongs to its taker, and is not passed
//! on through them. Workers of one tenant can each see the other's bytes late or early by one operation; then a
//! piece is refused that would have fitted, and the connection asks again.
//!
//! A take counts at the tenant first and at the pool second. Between the two, another worker of the same tenant may
//! give back bytes of the pool that were not counted there yet, so the pool's count is signed: it is below zero until
//! the first worker's second step. Each worker judges the pool by its own step, so no order of steps lets two workers
//! have the same bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

/// Largest piece in which a payload is received, executed and answered, bytes. Two copies of it, one in the kernel and
/// one in a device that lives in memory, take a core some 30 us: the longest that another tenant waits for one piece.
pub const PIECE_BYTES_MAX: u32 = 128 << 10;

/// Payload memory of a server, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryLimits {
    /// Limit of all tenants together.
    pub server_bytes: u64,
    /// Tenants that share it, at least 1.
    pub tenants: usize,
}

impl MemoryLimits {
    /// Default payload memory of a server, bytes.
    pub const SERVER_BYTES: u64 = 256 << 20;
    /// Default payload memory of a tenant, bytes.
    pub const TENANT_BYTES: u64 = 64 << 20;
    /// Default payload memory of a connection, bytes.
    pub const CONNECTION_BYTES: u64 = 16 << 20;
}

/// Memory that tenants hold beyond their guarantees, bytes.
#[derive(Debug)]
struct Pool {
    /// Below zero for a moment, see "Orderings" at the head of the file.
    held: AtomicI64,
    bytes_max: AtomicU64,
}

impl Pool {
    /// True: after `bytes` more, the pool is not beyond its limit. They are counted either way.
    fn take(&self, bytes: u64) -> bool {
        // Relaxed: a count, see "Orderings". Limits and payloads are far below 2^63, so no sum wraps.
        let held = self.held.fetch_add(bytes as i64, Relaxed) + bytes as i64;
        held.max(0) as u64 <= self.bytes_max.load(Relaxed)
    }

    fn give(&self, bytes: u64) {
        // Relaxed: a count, see "Orderings".
        self.held.fetch_sub(bytes as i64, Relaxed);
    }
}

/// Makes the [`TenantMemory`] of each tenant of one server.
#[derive(Debug)]
pub struct ServerMemory {
    pool: Arc<Pool>,
    guaranteed_bytes: AtomicU64,
}

/// Each tenant's guarantee, and the size of the pool, bytes.
fn shares(limits: MemoryLimits) -> (u64, u64) {
    let MemoryLimits { server_bytes, tenants } = limits;
    let tenants = tenants.max(1) as u64;
    let guaranteed_bytes = (server_bytes / 2 / tenants / GRAIN_BYTES * GRAIN_BYTES).min(GUARANTEE_BYTES_MAX);
    (guaranteed_bytes, server_bytes - guaranteed_bytes * tenants)
}

impl ServerMemory {
    /// Nothing held.
    pub fn new(limits: MemoryLimits) -> ServerMemory {
        let (guaranteed_bytes, pool_bytes) = shares(limits);
        let pool = Pool { held: AtomicI64::new(0), bytes_max: AtomicU64::new(pool_bytes) };
        ServerMemory { pool: Arc::new(pool), guaranteed_bytes: AtomicU64::new(guaranteed_bytes) }
    }

    /// A tenant that may hold `bytes_max` at most. All connections of the tenant share it.
    pub fn tenant(&self, bytes_max: u64) -> Arc<TenantMemory> {
        let tenant =
            TenantMemory { held: AtomicU64::new(0), bytes_max: AtomicU64::new(bytes_max), pool: self.pool.clone() };
        // Relaxed: the control plane alone writes and reads it.
        tenant.guarantee(self.guaranteed_bytes.load(Relaxed).min(bytes_max));
        Arc::new(tenant)
    }

    /// Shares `server_bytes` out among `tenants`, and among tenants that are made afterwards, as `limits` counts them.
    /// Visits the tenants only if their guarantee changes.
    pub fn share<'a>(&self, limits: MemoryLimits, tenants: impl IntoIterator<Item = &'a TenantMemory>) {
        let (guaranteed_bytes, pool_bytes) = shares(limits);
        // Relaxed, all: counts, see "Orderings".
        self.pool.bytes_max.store(pool_bytes, Relaxed);
        if self.guaranteed_bytes.swap(guaranteed_bytes, Relaxed) != guaranteed_bytes {
            for tenant in tenants {
                tenant.guarantee(guaranteed_bytes.min(tenant.bytes_max.load(Relaxed)));
            }
        }
    }

    /// One of its tenants may hold so much from now on; the limits of the others stay.
    pub fn limit(&self, tenant: &TenantMemory, bytes_max: u64) {
        // Relaxed, both: counts, see "Orderings".
        tenant.bytes_max.store(bytes_max, Relaxed);
        tenant.guarantee(self.guaranteed_bytes.load(Relaxed).min(bytes_max));
    }
}

/// A guarantee is a multiple of this, bytes.
const GRAIN_BYTES: u64 = 16 << 10;

/// Bits of a tenant's word that say what it holds: 16 TiB, which no limit allows.
const HELD_BITS: u32 = 44;

/// Largest guarantee that the bits above them say, bytes.
const GUARANTEE_BYTES_MAX: u64 = (u64::MAX >> HELD_BITS) * GRAIN_BYTES;

/// Memory that one tenant holds, on all workers.
#[derive(Debug)]
pub struct TenantMemory {
    /// Its guarantee in grains, above what it holds in bytes.
    held: AtomicU64,
    bytes_max: AtomicU64,
    pool: Arc<Pool>,
}

/// Memory held according to a tenant's word, bytes.
const fn held_bytes(word: u64) -> u64 {
    word & ((1 << HELD_BITS) - 1)
}

/// The part that is the pool's of what the word says, if `bytes` more were held.
const fn beyond(word: u64, bytes: u64) -> u64 {
    (held_bytes(word) + bytes).saturating_sub((word >> HELD_BITS) * GRAIN_BYTES)
}

impl TenantMemory {
    /// A tenant without bounds, for embedders and tests that have none.
    pub fn unbounded() -> Arc<TenantMemory> {
        ServerMemory::new(MemoryLimits { server_bytes: u64::MAX / 2, tenants: 1 }).tenant(u64::MAX / 2)
    }

    /// Held now, bytes.
    pub fn held_bytes(&self) -> u64 {
        // Relaxed: a count, see "Orderings".
        held_bytes(self.held.load(Relaxed))
    }

    /// Its guarantee and its limit, bytes.
    pub fn limits(&self) -> (u64, u64) {
        // Relaxed, both: counts, see "Orderings".
        ((self.held.load(Relaxed) >> HELD_BITS) * GRAIN_BYTES, self.bytes_max.load(Relaxed))
    }

    /// So much is guaranteed from now on, rounded down to grains.
    fn guarantee(&self, bytes: u64) {
        let grains = bytes.min(GUARANTEE_BYTES_MAX) / GRAIN_BYTES;
        // Relaxed: counts, see "Orderings". What is held at this step is counted by the one guarantee before it and by
        // the other after it.
        let mut seen = self.held.load(Relaxed);
        let word = loop {
            let word = grains << HELD_BITS | held_bytes(seen);
            match self.held.compare_exchange_weak(seen, word, Relaxed, Relaxed) {
                Ok(_) => break word,
                Err(now) => seen = now,
            }
        };
        let (before, after) = (beyond(seen, 0), beyond(word, 0));
        if after > before {
            // Whatever the pool's limit says: it is held already.
            let _ = self.pool.take(after - before);
        } else {
            self.pool.give(before - after);
        }
    }

    /// True: `bytes` more are held. `always`: whatever the limits say.
    fn take(&self, bytes: u64, always: bool) -> bool {
        // Relaxed: counts, see "Orderings". All takes and gives lie end to end on one axis, so the parts beyond the
        // guarantee add up to the pool's, in whatever order threads come.
        let before = self.held.fetch_add(bytes, Relaxed);
        let from_pool = beyond(before, bytes) - beyond(before, 0);
        let fits_pool = from_pool == 0 || self.pool.take(from_pool);
        let fits = always || (held_bytes(before) + bytes <= self.bytes_max.load(Relaxed) && fits_pool);
        if !fits {
            self.give(bytes);
        }
        fits
    }

    fn give(&self, bytes: u64) {
        // Relaxed: counts, see "Orderings".
        let before = self.held.fetch_sub(bytes, Relaxed);
        debug_assert!(held_bytes(before) >= bytes, "{bytes} bytes given back, {} were held", held_bytes(before));
        let to_pool = beyond(before, 0) - beyond(before - bytes, 0);
        if to_pool > 0 {
            self.pool.give(to_pool);
        }
    }
}

/// Reason why there is no memory now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Short {
    /// The connection holds as much as it may: its own replies or requests must end first, and the client of the
    /// account hears of that.
    Connection,
    /// The tenant or the server does: others must give back first, so ask again after a while.
    Shared,
}

/// Memory that one connection holds. Dropping it gives everything back.
#[derive(Debug)]
pub struct Account {
    tenant: Arc<TenantMemory>,
    held_bytes: u64,
    /// Part of `held_bytes` that is not payload and stays as long as the connection.
    standing_bytes: u64,
    bytes_max: u64,
}

impl Account {
    /// A connection of `tenant` that may hold `bytes_max`.
    pub fn new(tenant: Arc<TenantMemory>, bytes_max: u64) -> Account {
        Account { tenant, held_bytes: 0, standing_bytes: 0, bytes_max }
    }

    /// Takes `bytes`.
    ///
    /// # Errors
    /// [`Short`]: nothing was taken.
    pub fn take(&mut self, bytes: u64) -> Result<(), Short> {
        if bytes == 0 {
            return Ok(());
        }
        let has_payload = self.held_bytes > self.standing_bytes;
        if has_payload && self.held_bytes + bytes > self.bytes_max {
            return Err(Short::Connection);
        }
        if !self.tenant.take(bytes, !has_payload) {
            return Err(Short::Shared);
        }
        self.held_bytes += bytes;
        Ok(())
    }

    /// Takes `bytes` that are no payload: one piece or request still always fits.
    ///
    /// # Errors
    /// [`Short`]: nothing was taken, and something is held.
    pub fn hold(&mut self, bytes: u64) -> Result<(), Short> {
        let holds = self.held_bytes > 0;
        if holds && self.held_bytes + bytes > self.bytes_max {
            return Err(Short::Connection);
        }
        if !self.tenant.take(bytes, !holds) {
            return Err(Short::Shared);
        }
        self.held_bytes += bytes;
        self.standing_bytes += bytes;
        Ok(())
    }

    /// Gives `bytes` back that were taken by [`Account::hold`].
    pub fn release(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.standing_bytes, "{bytes} bytes released, {} stood", self.standing_bytes);
        self.standing_bytes -= bytes;
        self.give(bytes);
    }

    /// Counts `bytes` that a connection brings along from another process, whatever the limits say.
    pub fn carry(&mut self, bytes: u64) {
        self.tenant.take(bytes, true);
        self.held_bytes += bytes;
    }

    /// Counts `bytes` that the connection holds as long as it is there and that are no payload, whatever the limits
    /// say: one request or piece still always fits.
    pub fn stand(&mut self, bytes: u64) {
        self.carry(bytes);
        self.standing_bytes += bytes;
    }

    /// Gives `bytes` back.
    ///
    /// # Panics
    /// If fewer are held: some memory would be counted twice.
    pub fn give(&mut self, bytes: u64) {
        let held_bytes = self.held_bytes - self.standing_bytes;
        assert!(bytes <= held_bytes, "{bytes} bytes freed, {held_bytes} were held");
        if bytes > 0 {
            self.held_bytes -= bytes;
            self.tenant.give(bytes);
        }
    }

    /// Held now, bytes.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.standing_bytes = 0;
        self.give(self.held_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    impl ServerMemory {
        /// Memory held beyond guarantees now, bytes.
        fn pool_held_bytes(&self) -> u64 {
            self.pool.held.load(Relaxed).max(0) as u64
        }
    }

    /// 1 MiB for four tenants: 128 KiB guaranteed to each, 512 KiB in the pool.
    fn server() -> ServerMemory {
        ServerMemory::new(MemoryLimits { server_bytes: 1 << 20, tenants: 4 })
    }

    #[test]
    fn a_connection_and_a_tenant_have_limits_of_their_own() {
        let server = server();
        let tenant = server.tenant(256 * KIB);
        let mut first = Account::new(tenant.clone(), 192 * KIB);
        let mut second = Account::new(tenant.clone(), 192 * KIB);
        assert_eq!(first.take(128 * KIB), Ok(()));
        assert_eq!(first.take(65 * KIB), Err(Short::Connection), "128 + 65 > 192");
        assert_eq!(first.take(64 * KIB), Ok(()));
        assert_eq!(second.take(KIB), Ok(()));
        assert_eq!(second.take(64 * KIB), Err(Short::Shared), "192 + 1 + 64 > 256");
        assert_eq!(second.take(63 * KIB), Ok(()));
        assert_eq!((tenant.held_bytes(), server.pool_held_bytes()), (256 * KIB, 128 * KIB));
        drop(first);
        drop(second);
        assert_eq!((tenant.held_bytes(), server.pool_held_bytes()), (0, 0));
    }

    #[test]
    fn tenants_that_take_all_they_can_leave_another_its_guarantee() {
        let server = server();
        let tenants: Vec<_> = (0..4).map(|_| server.tenant(1 << 30)).collect();
        let mut accounts: Vec<Account> = tenants.iter().map(|tenant| Account::new(tenant.clone(), 1 << 30)).collect();
        for greedy in &mut accounts[..3] {
            while greedy.take(32 * KIB).is_ok() {}
        }
        // 3 x 128 KiB and the pool of 512 KiB.
        assert_eq!(accounts[..3].iter().map(Account::held_bytes).sum::<u64>(), (3 * 128 + 512) * KIB);
        let modest = &mut accounts[3];
        assert!((0..4).all(|_| modest.take(32 * KIB).is_ok()), "128 KiB are its own");
        assert_eq!(modest.take(32 * KIB), Err(Short::Shared));
    }

    #[test]
    fn a_connection_that_holds_nothing_gets_one_piece_whatever_its_siblings_and_others_hold() {
        let server = ServerMemory::new(MemoryLimits { server_bytes: 64 * KIB, tenants: 1000 });
        let mut accounts: Vec<Account> = (0..1000).map(|_| Account::new(server.tenant(4 * KIB), KIB)).collect();
        for account in &mut accounts {
            assert_eq!(account.take(128 * KIB), Ok(()));
            assert!(account.take(1).is_err());
        }
        let mut sibling = Account::new(accounts[0].tenant.clone(), KIB);
        assert_eq!((sibling.take(128 * KIB), sibling.take(1)), (Ok(()), Err(Short::Connection)));
        drop(sibling);
        accounts.clear();
        assert_eq!(server.pool_held_bytes(), 0);
    }

    #[test]
    fn what_is_held_beside_payload_is_bounded_and_takes_no_pieces_place() {
        let server = server();
        let mut account = Account::new(server.tenant(1 << 30), 64 * KIB);
        assert_eq!(account.hold(40 * KIB), Ok(()));
        assert_eq!(account.hold(25 * KIB), Err(Short::Connection), "40 + 25 > 64");
        assert_eq!((account.take(128 * KIB), account.take(1)), (Ok(()), Err(Short::Connection)));
        account.give(128 * KIB);
        account.release(40 * KIB);
        assert_eq!(account.hold(65 * KIB), Ok(()), "who holds nothing gets one");
        let mut other = Account::new(account.tenant.clone(), 1 << 30);
        while other.take(32 * KIB).is_ok() {}
        assert_eq!(account.hold(KIB), Err(Short::Connection));
        account.release(65 * KIB);
        assert_eq!(account.held_bytes(), 0);
    }

    #[test]
    fn a_refused_take_leaves_nothing_behind() {
        let server = server();
        let mut greedy = Account::new(server.tenant(1 << 30), 1 << 30);
        while greedy.take(32 * KIB).is_ok() {}
        let (held, pool) = (greedy.held_bytes(), server.pool_held_bytes());
        (0..100).for_each(|_| assert_eq!(greedy.take(32 * KIB), Err(Short::Shared)));
        assert_eq!((greedy.held_bytes(), greedy.tenant.held_bytes(), server.pool_held_bytes()), (held, held, pool));
    }

    /// A worker that gives back between the two steps of another's take of the same tenant: its bytes leave the pool
    /// before the other's came.
    #[test]
    fn bytes_that_leave_the_pool_before_they_were_counted_there_refuse_nobody() {
        let server = server();
        let mut other = Account::new(server.tenant(1 << 30), 1 << 30);
        server.pool.give(96 * KIB);
        assert_eq!(server.pool_held_bytes(), 0);
        assert_eq!((other.take(128 * KIB), other.take(64 * KIB)), (Ok(()), Ok(())));
        assert!(server.pool.take(96 * KIB));
        assert_eq!(server.pool_held_bytes(), 64 * KIB);
        drop(other);
        assert_eq!(server.pool_held_bytes(), 0);
    }

    #[test]
    fn limits_that_change_while_memory_is_held_leave_every_byte_counted_once() {
        let server = server();
        let tenants = [server.tenant(256 * KIB), server.tenant(256 * KIB)];
        let mut accounts = tenants.clone().map(|tenant| Account::new(tenant, 1 << 30));
        assert_eq!(accounts.each_mut().map(|account| account.take(192 * KIB)), [Ok(()), Ok(())]);
        assert_eq!(server.pool_held_bytes(), 2 * 64 * KIB, "128 KiB of each are its own");
        // Eight tenants: 64 KiB guaranteed to each; then one alone, with 512 KiB.
        let share = |count, bytes_max| {
            tenants.iter().for_each(|tenant| server.limit(tenant, bytes_max));
            server
                .share(MemoryLimits { server_bytes: 1 << 20, tenants: count }, tenants.iter().map(|tenant| &**tenant));
        };
        share(8, 128 * KIB);
        assert_eq!(server.pool_held_bytes(), 2 * 128 * KIB);
        assert_eq!(accounts[0].take(KIB), Err(Short::Shared), "it holds more than it may by now");
        share(1, 1 << 20);
        assert_eq!(server.pool_held_bytes(), 0);
        assert_eq!(accounts[0].take(KIB), Ok(()));
        drop(accounts);
        share(8, 1 << 20);
        assert_eq!((server.pool_held_bytes(), tenants.map(|tenant| tenant.held_bytes())), (0, [0, 0]));
    }

    #[test]
    fn the_pool_adds_up_whatever_threads_do() {
        let server = server();
        let tenant = server.tenant(512 * KIB);
        std::thread::scope(|scope| {
            for number in 0..4_u64 {
                let tenant = tenant.clone();
                scope.spawn(move || {
                    let mut account = Account::new(tenant, 1 << 30);
                    for step in 0..10_000_u64 {
                        let bytes = (step * 7919 + number * 104_729) % (96 * KIB) + 1;
                        if account.take(bytes).is_err() {
                            account.give(account.held_bytes() / 2);
                        }
                    }
                });
            }
            for tenants in (1..=1000).rev() {
                server.share(MemoryLimits { server_bytes: 1 << 20, tenants }, [&*tenant]);
            }
        });
        assert_eq!((tenant.held_bytes(), server.pool_held_bytes()), (0, 0));
    }

    #[test]
    fn a_tenant_whose_limit_changes_has_a_guarantee_within_it() {
        let server = server();
        let tenant = server.tenant(1 << 30);
        let mut account = Account::new(tenant.clone(), 1 << 30);
        assert_eq!((account.take(128 * KIB), server.pool_held_bytes()), (Ok(()), 0), "its own");
        server.limit(&tenant, 64 * KIB);
        assert_eq!((server.pool_held_bytes(), account.take(1)), (64 * KIB, Err(Short::Shared)));
        // The others' parts are others, too, and each limit stays what it was.
        let limits = |tenants| MemoryLimits { server_bytes: 1 << 20, tenants };
        server.share(limits(16), [&*tenant]);
        assert_eq!((server.pool_held_bytes(), account.take(1)), (96 * KIB, Err(Short::Shared)), "32 KiB each");
        server.share(limits(4), [&*tenant]);
        assert_eq!((server.pool_held_bytes(), account.take(1)), (64 * KIB, Err(Short::Shared)));
        server.limit(&tenant, 1 << 30);
        assert_eq!((server.pool_held_bytes(), account.take(KIB), server.pool_held_bytes()), (0, Ok(()), KIB));
        let mut later = Account::new(server.tenant(1 << 30), 1 << 30);
        assert_eq!(
            (later.take(128 * KIB), server.pool_held_bytes()),
            (Ok(()), KIB),
            "one that comes later has its own"
        );
        // The guarantees stay, and the pool grows.
        server.share(MemoryLimits { server_bytes: (1 << 20) + 12 * KIB, tenants: 4 }, []);
        assert_eq!((account.take(523 * KIB), account.take(1)), (Ok(()), Err(Short::Shared)));
    }

    #[test]
    #[should_panic = "8192 bytes freed, 4096 were held"]
    fn what_a_connection_holds_as_long_as_it_is_there_is_not_given_back_before() {
        let mut account = Account::new(TenantMemory::unbounded(), 1 << 20);
        account.stand(8 * KIB);
        account.take(4 * KIB).unwrap();
        account.give(8 * KIB);
    }

    #[test]
    fn memory_that_is_shared_anew_is_that_of_tenants_who_come_later_as_well() {
        let server = server();
        server.share(MemoryLimits { server_bytes: 2 << 20, tenants: 4 }, []);
        // 256 KiB for each of the four, and 1 MiB in the pool.
        let mut account = Account::new(server.tenant(1 << 30), 1 << 30);
        assert_eq!((account.take(256 * KIB), server.pool_held_bytes()), (Ok(()), 0));
        assert_eq!((account.take(1024 * KIB), account.take(1)), (Ok(()), Err(Short::Shared)));
    }
}
