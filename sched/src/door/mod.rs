//! The front door: shares by weight in any program.
//!
//! A [`Scheduler`] shares `permits` among [`Tenant`]s. A job of a tenant waits until it gets a [`Permit`], which goes
//! back with what the job really cost. Tenants that have jobs waiting get cost in proportion to their weights; what one
//! does not use, the others have. Costs are in any unit (bytes, nanoseconds, tokens): their usual size is found from
//! what is pushed, and window and rates follow it, so only the ratio of weights and of costs has a meaning.
//!
//! | use | call |
//! |---|---|
//! | a loop per core | [`Scheduler::worker`], then [`Worker::try_push`], [`Worker::next`], [`Worker::finish`] |
//! | any async runtime | [`Tenant::acquire`], a future that may be dropped at any time |
//! | threads | [`Tenant::acquire_blocking`] |
//!
//! A loop per core is the fast one: it takes no lock that another worker takes, but where one is away, and a [`Turn`]
//! takes its own once for many calls.
//!
//! ```
//! use mqfq_sched::door::{Next, Scheduler};
//!
//! let scheduler = Scheduler::builder().permits(4).build()?;
//! let tenants = [scheduler.add_tenant(1)?, scheduler.add_tenant(3)?];
//! let mut worker = scheduler.worker(0)?;
//! let mut served = [0, 0];
//! for round in 0..4000 {
//!     for (name, tenant) in tenants.iter().enumerate() {
//!         while tenant.counters().waiting < 8 {
//!             worker.try_push(tenant, 500, name)?;
//!         }
//!     }
//!     if let Next::Job(permit, name) = worker.next(round) {
//!         served[name] += 1;
//!         worker.finish(permit, 500);
//!     }
//! }
//! let ratio = f64::from(served[1]) / f64::from(served[0]);
//! assert!((2.9..3.1).contains(&ratio));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Why does it wait?
//! [`Tenant::counters`] tells how often a worker found the tenant's job first and could not start it: *held by the
//! window* (it is ahead of others by its weight) or *held by permits* (all are out).
//!
//! # A worker that is away
//! A worker that does not call [`Worker::next`] for [`Builder::away_after_ns`], while another has nothing to start, is
//! passed: its jobs stand aside and delay no others. Its next call puts them back, at virtual time: it has no credit
//! for the time away, and no debt. This needs a clock: pass `now_ns` of any monotonic one to [`Worker::next`]. A
//! worker that sleeps by [`Worker::may_sleep`] is not away.
//!
//! # Invariants
//! D1. A permit goes back once: by `finish`, or as its job was announced when it is dropped.
//! D2. A place has one owner: one `Worker`, or the calls of `acquire`.
//! D3. A kick is answered: by the worker of the place, or by a pick of the kicker if there is none or it stands aside.
//!
//! D3 against passing, two threads that both write, fence, look:
//!
//! | kicker | passer |
//! |---|---|
//! | puts a token on the path, **fence** | place is *away*, **fence** |
//! | reads whether the place is away: picks for it | empties the queue and picks for it |

mod acquire;
mod found;
mod refused;
mod shared;
mod worker;

pub use acquire::PermitFuture;
pub use found::FoundPermits;
pub use refused::{BuildError, Refused};
pub use shared::{Builder, Counters, Permit, Scheduler, Tenant};
pub use worker::{JobId, Next, Turn, Wait, Worker};
