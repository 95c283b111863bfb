//! Futures, on no runtime in particular: the executor here is a list that is polled in turn.
//!
//! `cargo run --release -p mqfq-sched --example futures`

use mqfq_sched::door::{Refused, Scheduler, Tenant};
use std::cell::Cell;
use std::future::Future;
use std::task::{Context, Waker};

/// One request after the other, as a client sends them. The bytes of a reply are known when it is sent.
async fn client(tenant: Tenant, reply_bytes: u64, served_bytes: &Cell<u64>) -> Result<(), Refused> {
    loop {
        let permit = tenant.acquire(4096).await?;
        step().await;
        served_bytes.set(served_bytes.get() + reply_bytes);
        permit.finish(reply_bytes);
    }
}

/// The others go on meanwhile.
async fn step() {
    let mut is_first = true;
    std::future::poll_fn(|_| match std::mem::replace(&mut is_first, false) {
        true => std::task::Poll::Pending,
        false => std::task::Poll::Ready(()),
    })
    .await;
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let scheduler = Scheduler::builder().permits(4).build()?;
    let tenants = [scheduler.add_tenant(1)?, scheduler.add_tenant(3)?];
    let bytes = [Cell::new(0), Cell::new(0)];
    let client = |n: usize| Box::pin(client(tenants[n % 2].clone(), [16_384, 1024][n % 2], &bytes[n % 2]));
    let mut clients: Vec<_> = (0..40).map(client).collect();
    for _ in 0..20_000 {
        for client in &mut clients {
            let _ = client.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
    }
    let [one, three] = bytes.each_ref().map(Cell::get);
    println!("{one} bytes to {three}, a ratio of {:.3}", three as f64 / one as f64);
    Ok(())
}
