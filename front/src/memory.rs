//! Payload memory: how much a connection, a tenant and the server may hold.
//!
//! A payload is what a request carries: the bytes of a write on their way in, the bytes of a read on their way out. Its
//! memory is taken piece by piece as bytes move ([`PIECE_BYTES_MAX`]), counted here first, and given back when the
//! device or the client has the bytes. A connection that gets none waits; nobody is refused.
//!
//! # Who may take `n` bytes
//! | holds now | may take if |
//! |---|---|
//! | a connection with nothing | always: so everybody gets on, one piece at a time, whatever its siblings hold |
//! | a connection with something | `held + n <= ` its limit |
//! | a tenant | `held + n <= ` its limit |
//! | a tenant, up to its guarantee | always |
//! | a tenant, beyond its guarantee | the pool has so much left |
//!
//! Half of the server's memory is guaranteed to tenants in equal parts; the other half is the pool.
//!
//! # Example
//! Server 256 MiB, four tenants: each has 256 / 2 / 4 = 32 MiB that nobody can take from it, and 128 MiB are in the
//! pool. A tenant with a limit of 64 MiB that reads no replies holds its 32 MiB and 32 MiB of the pool. Three of them
//! hold 96 MiB of the pool, and the fourth still has 64 MiB.
//!
//! # Bound
//! All payloads together hold at most the server's memory and one piece for each connection.
//!
//! # Orderings
//! Relaxed throughout: the numbers are counts. The memory that they stand for is owned by whoever took it, and reaches
//! nobody through them. Workers of one tenant can each see the other's bytes late or early by one operation; then a
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
    /// Of all tenants together.
    pub server_bytes: u64,
    /// Tenants that share it, at least 1.
    pub tenants: usize,
}

impl MemoryLimits {
    /// Payload memory of a server that is told nothing, bytes.
    pub const SERVER_BYTES: u64 = 256 << 20;
    /// The same of a tenant.
    pub const TENANT_BYTES: u64 = 64 << 20;
    /// The same of a connection.
    pub const CONNECTION_BYTES: u64 = 16 << 20;
}

/// What tenants hold beyond their guarantees, bytes.
#[derive(Debug)]
struct Pool {
    /// Below zero for a moment, see "Orderings" at the head of the file.
    held: AtomicI64,
    bytes_max: u64,
}

impl Pool {
    /// True: after `bytes` more, the pool is not beyond its limit. They are counted either way.
    fn take(&self, bytes: u64) -> bool {
        // Relaxed: a count, see "Orderings". Limits and payloads are far below 2^63, so no sum wraps.
        let held = self.held.fetch_add(bytes as i64, Relaxed) + bytes as i64;
        held.max(0) as u64 <= self.bytes_max
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
    guaranteed_bytes: u64,
}

impl ServerMemory {
    /// Nothing held.
    pub fn new(limits: MemoryLimits) -> ServerMemory {
        let MemoryLimits { server_bytes, tenants } = limits;
        let guaranteed_bytes = server_bytes / 2 / tenants.max(1) as u64;
        let bytes_max = server_bytes - guaranteed_bytes * tenants.max(1) as u64;
        ServerMemory { pool: Arc::new(Pool { held: AtomicI64::new(0), bytes_max }), guaranteed_bytes }
    }

    /// A tenant that may hold `bytes_max` at most. All connections of the tenant share it.
    pub fn tenant(&self, bytes_max: u64) -> Arc<TenantMemory> {
        let guaranteed_bytes = self.guaranteed_bytes.min(bytes_max);
        Arc::new(TenantMemory { held: AtomicU64::new(0), guaranteed_bytes, bytes_max, pool: self.pool.clone() })
    }

    /// Held beyond guarantees now, bytes.
    pub fn pool_held_bytes(&self) -> u64 {
        // Relaxed: a count, see "Orderings".
        self.pool.held.load(Relaxed).max(0) as u64
    }
}

/// What one tenant holds, on all workers.
#[derive(Debug)]
pub struct TenantMemory {
    held: AtomicU64,
    guaranteed_bytes: u64,
    bytes_max: u64,
    pool: Arc<Pool>,
}

impl TenantMemory {
    /// A tenant without bounds, for embedders and tests that have none.
    pub fn unbounded() -> Arc<TenantMemory> {
        ServerMemory::new(MemoryLimits { server_bytes: u64::MAX / 2, tenants: 1 }).tenant(u64::MAX / 2)
    }

    /// Held now, bytes.
    pub fn held_bytes(&self) -> u64 {
        // Relaxed: a count, see "Orderings".
        self.held.load(Relaxed)
    }

    /// The part of `held` bytes that is the pool's.
    fn beyond(&self, held: u64) -> u64 {
        held.saturating_sub(self.guaranteed_bytes)
    }

    /// True: `bytes` more are held. `always`: whatever the limits say.
    fn take(&self, bytes: u64, always: bool) -> bool {
        // Relaxed: counts, see "Orderings". All takes and gives lie end to end on one axis, so the parts beyond the
        // guarantee add up to the pool's, in whatever order threads come.
        let before = self.held.fetch_add(bytes, Relaxed);
        let from_pool = self.beyond(before + bytes) - self.beyond(before);
        let fits_pool = from_pool == 0 || self.pool.take(from_pool);
        let fits = always || (before + bytes <= self.bytes_max && fits_pool);
        if !fits {
            self.give(bytes);
        }
        fits
    }

    fn give(&self, bytes: u64) {
        // Relaxed: counts, see "Orderings".
        let before = self.held.fetch_sub(bytes, Relaxed);
        debug_assert!(before >= bytes, "{bytes} bytes given back, {before} were held");
        let to_pool = self.beyond(before) - self.beyond(before - bytes);
        if to_pool > 0 {
            self.pool.give(to_pool);
        }
    }
}

/// Why there is no memory now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Short {
    /// The connection holds as much as it may: its own replies or requests must end first, and the client of the
    /// account hears of that.
    Connection,
    /// The tenant or the server does: others must give back first, so ask again after a while.
    Shared,
}

/// What one connection holds. Dropping it gives everything back.
#[derive(Debug)]
pub struct Account {
    tenant: Arc<TenantMemory>,
    held_bytes: u64,
    bytes_max: u64,
}

impl Account {
    /// A connection of `tenant` that may hold `bytes_max`.
    pub fn new(tenant: Arc<TenantMemory>, bytes_max: u64) -> Account {
        Account { tenant, held_bytes: 0, bytes_max }
    }

    /// Takes `bytes`.
    ///
    /// # Errors
    /// [`Short`]: nothing was taken.
    pub fn take(&mut self, bytes: u64) -> Result<(), Short> {
        if bytes == 0 {
            return Ok(());
        }
        if self.held_bytes > 0 && self.held_bytes + bytes > self.bytes_max {
            return Err(Short::Connection);
        }
        if !self.tenant.take(bytes, self.held_bytes == 0) {
            return Err(Short::Shared);
        }
        self.held_bytes += bytes;
        Ok(())
    }

    /// Counts `bytes` that a connection brings along from another process, whatever the limits say.
    pub fn carry(&mut self, bytes: u64) {
        self.tenant.take(bytes, true);
        self.held_bytes += bytes;
    }

    /// Gives `bytes` back.
    ///
    /// # Panics
    /// If fewer are held: some memory would be counted twice.
    pub fn give(&mut self, bytes: u64) {
        assert!(bytes <= self.held_bytes, "{bytes} bytes freed, {} were held", self.held_bytes);
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
        self.give(self.held_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

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
        });
        assert_eq!((tenant.held_bytes(), server.pool_held_bytes()), (0, 0));
    }
}
