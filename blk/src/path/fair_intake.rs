//! When does a turn of a worker's loop end for the sake of fairness?
//!
//! A policy orders requests that are staged. Where the worker itself is the bottleneck, a turn that dispatches whatever
//! it has read leaves nothing to order, and a tenant gets as many turns as it has connections. So while flows compete a
//! turn ends where the policy would lose its choice, and the worker looks at its sockets again before it dispatches
//! more. docs/inside/path.md has the argument and an example.
//!
//! # Competition
//! * Requests of several flows are staged in this queue when the sockets have been looked at.
//! * Dispatches of this worker freed other queues: it kicked them. They wait for the virtual time of a flow that is
//!   staged here alone, and if that flow ran dry between two looks at its sockets, virtual time would pass it.
//! * Flows competed within the last [`COMPETING_TURNS`] turns. A flow whose replies have not left has nothing staged
//!   for a turn or two, and one long turn of its competitor would undo many fair ones.
//!
//! # Where a turn ends
//! | with | because |
//! |---|---|
//! | a client that was given [`CLIENT_BYTES`] | more would not leave at once: its client would ask for nothing new meanwhile, and its flow would run dry while others go on |
//! | a flow left with its last request, whose client was given [`LOOK_BYTES`] | the request stays staged, and so the flow backlogged, while the sockets are looked at |
//!
//! Only the clients know whether they have more. If a look for a flow's sake brought nothing, the flow is asked less
//! and less often (`stage.rs`). A tenant with few requests in flight never gets [`LOOK_BYTES`] in a turn, so turns that
//! serve many such tenants stay long.
//!
//! Without competition a client leaves requests beyond 16 to the next turn ([`crate::client::Context::takes_more`]).
//!
//! # Cost
//! Competition is looked for once in a turn. Without it the path of a request pays nothing; with it, a look at the
//! request after its dispatch.

use crate::table::Owner;
use mqfq_sched::flow::FlowId;

/// Payload that one client is given in a turn while flows compete, bytes. A unix socket holds 208 KiB that were not
/// read, of which the replies' headers and the kernel's own take a part.
pub const CLIENT_BYTES: u32 = 192 << 10;

/// Bytes that a flow's client must have been given in a turn to be worth another look at the sockets. A look costs as
/// much as one or two requests of 4 KiB.
const LOOK_BYTES: u32 = 64 << 10;

/// Least bytes that a request counts towards those given to its client: 96 requests in a turn. The 256 that an NBD
/// connection may have in flight are then enough for a turn, for the replies of the turn before on their way, and for
/// the client's next requests.
const GIVEN_BYTES_MIN: u32 = 2048;

/// Turns after the last competition that still count as competing.
const COMPETING_TURNS: u32 = 16;

/// The turn, on one device.
#[derive(Debug, Default)]
pub(super) struct FairIntake {
    /// Turns are told, so another follows this one.
    is_told: bool,
    is_over: bool,
    /// Turns for which competition is remembered.
    competing_turns: u32,
    /// The flow whose last request ended the turn.
    held_back: Option<FlowId>,
    /// Counted from the first turn, and wraps.
    number: u32,
    /// By client: in which turn it was given how many bytes last. As long as there were clients that competed.
    given: Vec<(u32, u32)>,
}

impl FairIntake {
    pub(super) fn begin(&mut self) {
        (self.is_told, self.is_over) = (true, false);
        self.competing_turns = self.competing_turns.saturating_sub(1);
        self.number = self.number.wrapping_add(1);
    }

    /// No more may be dispatched.
    #[inline(always)]
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Each request that is dispatched may end it.
    #[inline(always)]
    pub(super) fn is_watched(&self) -> bool {
        self.is_told && self.competing_turns > 0
    }

    pub(super) fn compete(&mut self) {
        self.competing_turns = COMPETING_TURNS;
    }

    /// A client was given so many bytes. How many those are in this turn.
    pub(super) fn give(&mut self, Owner(client): Owner, bytes: u32) -> Given {
        if self.given.len() <= client as usize {
            self.given.resize(client as usize + 1, (0, 0));
        }
        let bytes = bytes.max(GIVEN_BYTES_MIN);
        let (number, given) = &mut self.given[client as usize];
        *given = if *number == self.number { given.saturating_add(bytes) } else { bytes };
        *number = self.number;
        Given(*given)
    }

    pub(super) fn end(&mut self) {
        self.is_over = true;
    }

    /// Ends the turn for the sake of this flow's last request.
    pub(super) fn end_for(&mut self, flow: FlowId) {
        (self.is_over, self.held_back) = (true, Some(flow));
    }

    /// Takes the flow for whose sake the turn before had ended: the sockets were looked at.
    pub(super) fn take_held_back(&mut self) -> Option<FlowId> {
        self.held_back.take()
    }
}

/// Bytes that a client was given in one turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given(u32);

impl Given {
    /// No more leaves at once.
    pub(super) fn is_all(self) -> bool {
        self.0 >= CLIENT_BYTES
    }

    /// Its client's sockets are worth a look.
    pub(super) fn is_worth_a_look(self) -> bool {
        self.0 >= LOOK_BYTES
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    const ONE: Owner = Owner(1);

    #[test]
    fn what_a_client_was_given_counts_within_one_turn() {
        let mut turn = FairIntake::default();
        turn.begin();
        // A small request counts as 2 KiB; 95 of them are not all, the 96th is.
        let given: Vec<Given> = (0..96).map(|_| turn.give(ONE, 512)).collect();
        assert_eq!(given.iter().map(|given| given.is_all()).collect::<Vec<_>>(), [&[false; 95][..], &[true]].concat());
        assert_eq!(given.iter().position(|given| given.is_worth_a_look()), Some(31), "64 KiB");
        // Another client has its own, and the next turn begins at nothing.
        assert_eq!(turn.give(Owner(7), LOOK_BYTES - 1).0, LOOK_BYTES - 1);
        assert!(turn.give(Owner(7), 1).is_worth_a_look());
        turn.begin();
        assert_eq!([turn.give(ONE, 4096).0, turn.give(ONE, 4096).0, turn.give(Owner(0), 0).0], [4096, 8192, 2048]);
        // Not given anything for a turn: the earlier bytes no longer count.
        turn.begin();
        turn.begin();
        assert_eq!([turn.give(ONE, u32::MAX).0, turn.give(ONE, u32::MAX).0], [u32::MAX; 2]);
    }

    #[test]
    fn a_turn_is_watched_while_somebody_competes_and_for_sixteen_turns_after() {
        let mut turn = FairIntake::default();
        turn.compete();
        assert!(!turn.is_watched(), "nobody tells its turns");
        turn.begin();
        turn.compete();
        assert!(turn.is_watched() && !turn.is_over());
        let watched = (0..20).map(|_| {
            turn.begin();
            turn.is_watched()
        });
        assert_eq!(watched.filter(|is_watched| *is_watched).count(), 15, "and the one in which it was seen");
    }

    #[test]
    fn a_turn_ends_for_nobody_or_for_a_flow_which_is_told_once() {
        let mut turn = FairIntake::default();
        turn.begin();
        turn.end();
        assert_eq!((turn.is_over(), turn.take_held_back()), (true, None));
        turn.begin();
        assert!(!turn.is_over());
        turn.end_for(FlowId(3));
        assert!(turn.is_over());
        turn.begin();
        assert_eq!([turn.take_held_back(), turn.take_held_back()], [Some(FlowId(3)), None]);
    }
}
