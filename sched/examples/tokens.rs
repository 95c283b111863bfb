//! Token generation: requests whose length is known at the end, on an engine that decodes a batch at a time.
//!
//! The cost is 1 per token of the prompt and 2 per token generated, as in the Virtual Token Counter (Sheng and others,
//! OSDI 2024). A request is announced at what its client's last one cost. The trace is made up: the paper's is not in
//! this repository. One client sends long answers, one short ones, one twice as many as it is served.
//!
//! `cargo run --release -p mqfq-sched --example tokens`

use mqfq_sched::door::{Next, Permit, Scheduler};

/// Requests of a client: tokens of the prompt, least and most tokens of an answer, arrivals per 1,000 steps.
const CLIENTS: [(&str, u32, u64, u64, u64, u64); 3] =
    [("long", 1, 64, 256, 512, 400), ("short", 1, 256, 16, 64, 400), ("paid", 2, 128, 64, 256, 800)];

/// Sequences in a batch.
const BATCH: u32 = 32;

struct Request {
    client: usize,
    cost: u64,
    left: u64,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let scheduler = Scheduler::builder().permits(BATCH).tenant_jobs(64).build()?;
    let tenants = CLIENTS.map(|client| scheduler.add_tenant(client.1)).into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut engine = scheduler.worker(0)?;
    let mut batch: Vec<(Permit, Request)> = Vec::new();
    let (mut announced, mut random) = ([512; 3], 1u64);
    for step in 0..400_000u64 {
        for (client, &(_, _, prompt, least, most, rate)) in CLIENTS.iter().enumerate() {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if (random >> 33) % 1000 < rate {
                let left = least + (random >> 40) % (most - least);
                let request = Request { client, cost: prompt + 2 * left, left };
                // A client that has too many waiting is refused, and no other is.
                let _ = engine.try_push(&tenants[client], announced[client], request);
            }
        }
        while let Next::Job(permit, request) = engine.next(step) {
            batch.push((permit, request));
        }
        // One step of the engine: a token for each sequence of the batch.
        batch.iter_mut().for_each(|(_, request)| request.left -= 1);
        let (ended, others): (Vec<_>, _) = batch.into_iter().partition(|(_, request)| request.left == 0);
        batch = others;
        for (permit, request) in ended {
            announced[request.client] = request.cost;
            engine.finish(permit, request.cost);
        }
    }
    println!("client  weight  requests  cost served  per weight");
    for (client, tenant) in CLIENTS.iter().zip(&tenants) {
        let served = tenant.counters();
        let per_weight = served.served_cost / u64::from(client.1);
        println!("{:6} {:7} {:9} {:12} {:11}", client.0, client.1, served.served, served.served_cost, per_weight);
    }
    Ok(())
}
