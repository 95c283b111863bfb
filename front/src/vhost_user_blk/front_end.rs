//! vhost-user-blk as the rest of the product sees it: which addresses it understands, and what listens there.

use super::NAMES;
use super::connection::Connection;
use super::line::Seats;
use crate::export::ExportTable;
use crate::front_end::{Address, AddressFault, FrontEnd, ListenOptions, Listener};
use crate::listener::SocketListener;
use crate::socket::SocketAddress;
use crate::takeover;
use std::fmt;
use std::sync::Arc;

/// What the key takes.
const ADDRESSES: &str = "\"unix:PATH\" (at most 107 bytes)";

/// The front end.
#[derive(Debug)]
pub struct VhostUser;

impl FrontEnd for VhostUser {
    fn name(&self) -> &'static str {
        NAMES.front_end
    }

    fn addresses(&self) -> &'static str {
        ADDRESSES
    }

    fn parse(&self, text: &str) -> Result<Arc<dyn Address>, AddressFault> {
        match SocketAddress::parse(text)? {
            address @ SocketAddress::Unix(_) => Ok(Arc::new(VhostUserAddress(address))),
            SocketAddress::Tcp { .. } => {
                Err(AddressFault::Refused("is no unix socket: a guest's memory cannot be shared over TCP".to_owned()))
            }
        }
    }
}

/// A socket where vhost-user is spoken: a disk has no name there, so it is one export's alone.
#[derive(Debug)]
struct VhostUserAddress(SocketAddress);

impl fmt::Display for VhostUserAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Address for VhostUserAddress {
    fn claim(&self) -> Option<String> {
        self.0.claim()
    }

    fn takes_several_exports(&self) -> bool {
        false
    }

    fn await_predecessor(&self, give_up: &dyn Fn() -> bool) {
        if let SocketAddress::Unix(path) = &self.0 {
            takeover::wait_for_socket(path, give_up);
        }
    }

    fn listen(&self, exports: Arc<ExportTable>, options: &ListenOptions) -> Result<Box<dyn Listener>, String> {
        let all = exports.all();
        let [export] = &all[..] else {
            return Err(format!("cannot listen on {self}: it is for one export, not for {}", all.len()));
        };
        let (export, options) = (Arc::clone(export), options.clone());
        let (seats, shared) = (Arc::<Seats>::default(), Arc::new(options.clone()));
        let connection =
            move |place| Box::new(Connection::new(place, export.clone(), seats.clone(), shared.clone())) as _;
        Ok(Box::new(SocketListener::bind(&self.0, &exports, options, &NAMES, Box::new(connection))?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::front_end::ExportAddress;

    #[test]
    fn a_socket_is_one_exports_alone() {
        let address = |text| ExportAddress::parse(&VhostUser, text).unwrap();
        assert!(address("unix:/a").collides_with(&address("unix:/a")));
        assert!(!address("unix:/a").collides_with(&address("unix:/b")));
        let nbd = ExportAddress::parse(&crate::nbd::Nbd, "unix:/a").unwrap();
        assert!(address("unix:/a").collides_with(&nbd));
        let tcp = VhostUser.parse("tcp:localhost:1").unwrap_err();
        assert!(matches!(tcp, AddressFault::Refused(why) if why.contains("TCP")));
    }
}
