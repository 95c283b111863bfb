//! A connection under TLS, and the log of its client.
//!
//! The channel ([`crate::nbd::channel`]) stands between the socket and the rest of the connection: where a connection
//! in the clear would receive, one under TLS decrypts the next record, and receives when there is none; where one would
//! send its parts, the other sends the records of them.
//!
//! # Handshakes take turns
//! A step of a handshake that has a whole message to look at may sign and exchange keys. A worker does one such step in
//! each turn of its loop, of any client ([`may_step`]); the others ask for a timer that is due at once. So between
//! two handshakes each client of the worker has its turn, and handshakes are served in the order in which they asked.
//! How long they may take in all is the handshake's time limit.
//!
//! # How it ends
//! When every reply has left, close_notify is sent, and when that has left the socket is shut down. A client that is
//! closed for a broken handshake gets the alert that says why.

use super::{Connection, Life, ProtocolPhase, user};
use crate::export::Export;
use crate::front_end::LogLine;
use crate::identity::Peer;
use crate::nbd::channel::{Channel, Step, may_step};
use crate::nbd::negotiate::Tls;
use crate::nbd::options::NbdOptions;
use crate::nbd::rule::Rule;
use mqfq_blk::client::Context;

/// TLS of an address.
pub(super) fn offered(options: &NbdOptions) -> Tls {
    match &options.listen.tls {
        None => Tls::Off,
        Some(offer) if offer.is_required => Tls::Required,
        Some(_) => Tls::Offered,
    }
}

impl Connection {
    /// STARTTLS was granted: its answer is among the replies, and nothing else is said in the clear.
    pub(super) fn start_tls(&mut self) {
        if !self.inbox.unread().is_empty() {
            // An attacker between client and server could have put these words into the client's mouth.
            self.broke(Rule::BytesBeforeTls);
            self.life = Life::Ending;
            return;
        }
        let offer = self.options.listen.tls.as_ref().expect("granted where it is offered");
        match Channel::new(offer.keys.now()) {
            Ok(channel) => self.channel = Some(Box::new(channel)),
            Err(why) => self.tls_broke(&why),
        }
    }

    /// Decrypts the bytes that have come, or receives more.
    pub(super) fn receive_sealed(&mut self, context: &mut dyn Context) {
        let channel = self.channel.as_mut().expect("the caller has looked");
        if channel.can_advance() {
            if !channel.is_established() && !may_step(context.turn()) {
                return self.await_turn(context);
            }
            match channel.advance(&mut self.inbox) {
                Step::Moved => {}
                Step::Established(names) => {
                    if let ProtocolPhase::Negotiating(negotiation) = &mut self.phase {
                        let credentials = negotiation.peer().credentials;
                        negotiation.secured(Peer { names, credentials });
                    }
                }
                Step::Ended => self.left(),
                Step::Broken(why) => self.tls_broke(&why),
            }
            // The caller goes on with what there is now.
            return;
        }
        if self.draining {
            return self.read_no_more();
        }
        match self.channel.as_mut().expect("as above").lend() {
            Some((buffer, from, to)) => {
                self.receiving = true;
                context.receive(self.fd(), buffer, from, to, user::WIRE);
            }
            None => self.tls_broke("a message is longer than there is room for"),
        }
    }

    pub(super) fn tls_broke(&mut self, why: &str) {
        self.broke_because(Rule::TlsBroken, &format!(": {why}"));
        self.read_no_more();
    }

    /// Everything was answered and has left.
    pub(super) fn end(&mut self, context: &mut dyn Context) {
        if let Some(channel) = &mut self.channel {
            channel.say_goodbye();
            if let Some(parts) = self.replies.begin_sealed_send(|plain| channel.seal(plain)) {
                self.waits.sends(context.now_ns());
                return context.send(self.fd(), parts, user::SEND);
            }
        }
        self.close(context);
    }

    /// A client was told that an export is not there, because it may not have it.
    pub(super) fn say_forbidden(&self) {
        let ProtocolPhase::Negotiating(negotiation) = &self.phase else { return };
        self.say(&format!("nbd: {} asked for an export that it may not have", negotiation.peer()), None);
    }

    /// Logs a client that has chosen an export which asks for identities.
    pub(super) fn say_admitted(&self, export: &Export) {
        let ProtocolPhase::Negotiating(negotiation) = &self.phase else { return };
        if export.state.asks_who() {
            let text = format!("nbd: {} has export {:?}", negotiation.peer(), export.name);
            self.say(&text, Some(&export.name));
        }
    }

    fn say(&self, text: &str, export: Option<&str>) {
        if let Some(log) = &self.options.listen.log {
            log(LogLine { text, export });
        }
    }
}
