//! vhost-user-blk as the rest of the product sees it: which addresses it understands, and what listens there.

use super::NAMES;
use super::connection::Connection;
use super::queue_control::ExclusiveAccess;
use crate::connection_slots::ConnectionSlot;
use crate::export::ExportTable;
use crate::front_end::{Address, AddressFault, FrontEnd, HandedOver, ListenOptions, Listener};
use crate::listener::{MakeConnection, SocketListener};
use crate::socket::SocketAddress;
use crate::takeover;
use mqfq_blk::client::{Client, Context, Event};
use mqfq_blk::passed::Door;
use mqfq_blk::request::Completion;
use std::fmt;
use std::sync::Arc;

/// Values that the key takes.
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

    fn polls(&self) -> bool {
        true
    }

    fn parse(&self, text: &str) -> Result<Arc<dyn Address>, AddressFault> {
        match SocketAddress::parse(text)? {
            socket @ SocketAddress::Unix(_) => Ok(Arc::new(VhostUserAddress { socket })),
            SocketAddress::Tcp { .. } => {
                Err(AddressFault::Refused("is no unix socket: a guest's memory cannot be shared over TCP".to_owned()))
            }
        }
    }
}

/// A socket where vhost-user is spoken: a disk has no name there, so it is one export's alone.
#[derive(Debug)]
struct VhostUserAddress {
    socket: SocketAddress,
}

impl fmt::Display for VhostUserAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.socket.fmt(f)
    }
}

impl Address for VhostUserAddress {
    fn claim(&self) -> Option<String> {
        self.socket.claim()
    }

    fn takes_several_exports(&self) -> bool {
        false
    }

    fn await_predecessor(&self, give_up: &dyn Fn() -> bool) {
        if let SocketAddress::Unix(path) = &self.socket {
            takeover::wait_for_socket(path, give_up);
        }
    }

    fn could_listen(&self) -> Result<(), String> {
        self.socket.could_listen()
    }

    fn listen(&self, exports: Arc<ExportTable>, options: &ListenOptions) -> Result<Box<dyn Listener>, String> {
        // None: a table of an address that comes while the server runs is filled before a client is let in.
        let all = exports.all().len();
        if all > 1 {
            return Err(format!("cannot listen on {self}: it is for one export, not for {all}"));
        }
        let (connection, door) = connections(&exports, options);
        let listener = SocketListener::bind(&self.socket, &exports, options.clone(), &NAMES, connection)?;
        Ok(Box::new(listener.with_door(door)))
    }

    /// The socket is handed over. Connections are not: they drain, and their front-ends connect again.
    fn adopt(
        &self,
        handed_over: HandedOver,
        exports: Arc<ExportTable>,
        options: &ListenOptions,
    ) -> Result<Box<dyn Listener>, String> {
        let (connection, door) = connections(&exports, options);
        let listener = SocketListener::adopt(&self.socket, handed_over, &exports, options.clone(), &NAMES, connection)?;
        Ok(Box::new(listener.with_door(door)))
    }
}

/// Makes a connection of each client, to the export that the table has when the client comes: it may be another one
/// than when the listener was made. And the door by which their descriptors come.
fn connections(exports: &Arc<ExportTable>, options: &ListenOptions) -> (MakeConnection, Arc<Door>) {
    let (exports, access, options) = (exports.clone(), Arc::<ExclusiveAccess>::default(), Arc::new(options.clone()));
    let door = access.door().clone();
    let connection: MakeConnection = Box::new(move |place| match &exports.all()[..] {
        [export] => Box::new(Connection::new(place, export.clone(), access.clone(), options.clone())),
        _ => Box::new(Unserved { _place: place }),
    });
    (connection, door)
}

/// A client that came when there was no export: its connection ends at once.
struct Unserved {
    _place: ConnectionSlot,
}

impl Client for Unserved {
    fn start(&mut self, _context: &mut dyn Context) {}

    fn event(&mut self, _context: &mut dyn Context, event: Event) {
        unreachable!("it asks for nothing, yet got {event:?}");
    }

    fn completed(&mut self, _context: &mut dyn Context, completion: Completion) {
        unreachable!("it submits nothing, yet got {completion:?}");
    }

    fn turn_end(&mut self, _context: &mut dyn Context) {}

    fn room(&mut self, _context: &mut dyn Context) {}

    fn drain(&mut self, _context: &mut dyn Context) {}

    fn is_done(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::disk::tests::export;
    use super::*;
    use crate::export::Export;
    use crate::front_end::ExportAddress;

    #[test]
    fn an_address_that_comes_while_clients_are_served_gets_its_export_later_and_never_two() {
        let path = std::env::temp_dir().join(format!("mqfq-vub-late-{}", std::process::id()));
        let address = VhostUserAddress { socket: SocketAddress::Unix(path.clone()) };
        let table = |names: &[&str]| {
            let one = |name: &&str| Export { name: (*name).to_owned(), ..export() };
            Arc::new(ExportTable::new(names.iter().map(one)).unwrap())
        };
        let options = ListenOptions::default();
        assert!(address.listen(table(&[]), &options).is_ok());
        let _ = std::fs::remove_file(path);
        let two = address.listen(table(&["a", "b"]), &options).err().unwrap();
        assert!(two.contains("it is for one export, not for 2"), "{two}");
    }

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
