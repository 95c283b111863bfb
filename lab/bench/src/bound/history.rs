//! Events of the flows of one device, in order: a flow became backlogged, a request was dispatched, one completed.
//!
//! This is all that the theorems speak of (MQFQ section 2.2). A flow is *backlogged* while at least one of its requests
//! waits. The dispatch that takes its last waiting request still belongs to the interval that ends there: both sides of
//! the proof hold for it.

/// One thing that happened. Flows are numbered from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The flow's first waiting request was submitted.
    Backlogged {
        /// The flow, by number.
        flow: u32,
    },
    /// A request went to the device.
    Dispatched {
        /// The flow, by number.
        flow: u32,
        /// Its size.
        bytes: u64,
    },
    /// The device finished a request.
    Completed {
        /// The flow, by number.
        flow: u32,
        /// Its size.
        bytes: u64,
    },
    /// No request of the flow waits any more.
    Drained {
        /// The flow, by number.
        flow: u32,
    },
    /// A request that is or was dispatched may start farther ahead of virtual time than by the T that the bounds are
    /// stated for, or less far; so until the next such event. A history without one keeps that T.
    Ahead {
        /// By so many units of virtual time; negative: less far.
        more_units: i64,
    },
}

/// Terms of a flow for the proofs, besides its events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowTerms {
    /// r, 1..=10000.
    pub weight: u16,
    /// l: the largest request of the flow that the history dispatches, as announced or as it was.
    pub largest_bytes: u64,
    /// On how many hctxs the flow submits.
    pub hctxs: u32,
    /// e: the largest difference between what a request was announced to cost and what it did; all of it, if one was
    /// withdrawn.
    pub error_bytes: u64,
}

/// The history of one run.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// In the order in which it happened.
    pub events: Vec<Event>,
    /// Per flow.
    pub flows: Vec<FlowTerms>,
    /// Per flow: requests that wait.
    waiting: Vec<u32>,
}

impl History {
    /// No event yet; per flow its weight and the number of hctxs on which it submits.
    pub fn new(flows: impl IntoIterator<Item = (u16, u32)>) -> History {
        let terms = |(weight, hctxs)| FlowTerms { weight, largest_bytes: 0, hctxs, error_bytes: 0 };
        let flows: Vec<FlowTerms> = flows.into_iter().map(terms).collect();
        History { events: Vec::new(), waiting: vec![0; flows.len()], flows }
    }

    /// Something that is known to have happened next. (The other methods find out themselves who is backlogged.)
    pub fn push(&mut self, event: Event) {
        if let Event::Dispatched { flow, bytes } = event {
            let largest = &mut self.flows[flow as usize].largest_bytes;
            *largest = bytes.max(*largest);
        }
        self.events.push(event);
    }

    /// A request was submitted.
    pub fn submitted(&mut self, flow: u32) {
        self.waiting[flow as usize] += 1;
        if self.waiting[flow as usize] == 1 {
            self.events.push(Event::Backlogged { flow });
        }
    }

    /// One of the waiting requests went to the device.
    ///
    /// # Panics
    /// If none waits.
    pub fn dispatched(&mut self, flow: u32, bytes: u64) {
        self.push(Event::Dispatched { flow, bytes });
        self.leaves(flow);
    }

    /// One of the waiting requests, of this announced cost, was taken back.
    ///
    /// # Panics
    /// If none waits.
    pub fn withdrawn(&mut self, flow: u32, announced: u64) {
        self.announced(flow, announced, 0);
        self.leaves(flow);
    }

    /// A request of this announced cost was, or will be, of the cost `bytes`.
    pub fn announced(&mut self, flow: u32, announced: u64, bytes: u64) {
        let terms = &mut self.flows[flow as usize];
        terms.largest_bytes = terms.largest_bytes.max(announced);
        terms.error_bytes = terms.error_bytes.max(announced.abs_diff(bytes));
    }

    fn leaves(&mut self, flow: u32) {
        let waiting = &mut self.waiting[flow as usize];
        *waiting = waiting.checked_sub(1).expect("only a request that waits can leave");
        if *waiting == 0 {
            self.events.push(Event::Drained { flow });
        }
    }

    /// The device finished a request.
    pub fn completed(&mut self, flow: u32, bytes: u64) {
        self.events.push(Event::Completed { flow, bytes });
    }

    /// Requests of the flow that wait.
    pub fn waiting(&self, flow: u32) -> u32 {
        self.waiting[flow as usize]
    }
}
