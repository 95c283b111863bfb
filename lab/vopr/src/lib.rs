//! The whole server in one thread: engine, workers, front ends, clients and faulty drives, in virtual time, from one
//! seed.
//!
//! ```text
//!   script ─▶ run ─▶ server: engine, exports, listeners     as the daemon makes them
//!   (seed)     │       │ workers on virtual hosts ◀─ world: whose turn, what time
//!              │       └ drive: memory behind faults and a cache that power cuts empty
//!              └─▶ clients: NBD, guests, hostile ones ─▶ oracle: what each sector may hold
//! ```
//!
//! | file | answers |
//! |---|---|
//! | `script.rs` | what happens, as text? |
//! | `run.rs` | what does each step do, and what must hold after it? |
//! | `server.rs` | what does the daemon do in which order? |
//! | `managed/` | what becomes of a server that is changed as a whole, by the reconciler that ships? |
//! | `world.rs`, `host.rs`, `net.rs` | whose turn is it, what does a worker run on, which bytes are on the wire? |
//! | `nbd.rs`, `guest.rs` | what do clients ask for, and are the answers right? |
//! | `hostile.rs` | what do clients do that mean harm, and what do they get hold of? |
//! | `oracle.rs` | what may a sector hold? |
//! | `main.rs` | which steps are enough to fail? |
//!
//! Nothing that decides is written twice: workers' loop, engine, front ends and drives are those that ship.
//! `docs/lab/vopr.md` tells how to use it.

pub mod guest;
pub mod host;
pub mod hostile;
pub mod managed;
pub mod nbd;
pub mod net;
pub mod oracle;
pub mod run;
pub mod script;
pub mod server;
pub mod world;
