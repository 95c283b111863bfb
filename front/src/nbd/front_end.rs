//! NBD as the rest of the product sees it: which addresses it understands, and what listens there.

use super::connection::Connection;
use super::options::{NAMES, NbdOptions};
use crate::export::ExportTable;
use crate::front_end::{Address, AddressFault, FrontEnd, HandedOver, ListenOptions, Listener};
use crate::listener::{MakeConnection, MakeTravelled, SocketListener};
use crate::socket::{self, SocketAddress};
use crate::takeover;
use std::fmt;
use std::sync::Arc;

/// The front end.
#[derive(Debug)]
pub struct Nbd;

impl FrontEnd for Nbd {
    fn name(&self) -> &'static str {
        NAMES.front_end
    }

    fn addresses(&self) -> &'static str {
        socket::ADDRESSES
    }

    fn parse(&self, text: &str) -> Result<Arc<dyn Address>, AddressFault> {
        Ok(Arc::new(NbdAddress(SocketAddress::parse(text)?)))
    }
}

/// A socket where NBD is spoken.
#[derive(Debug)]
struct NbdAddress(SocketAddress);

impl fmt::Display for NbdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Address for NbdAddress {
    fn claim(&self) -> Option<String> {
        self.0.claim()
    }

    fn network(&self) -> Option<bool> {
        self.0.network()
    }

    fn can_encrypt(&self) -> bool {
        true
    }

    fn tells_clients_apart(&self) -> bool {
        true
    }

    fn await_predecessor(&self, give_up: &dyn Fn() -> bool) {
        if let SocketAddress::Unix(path) = &self.0 {
            takeover::wait_for_socket(path, give_up);
        }
    }

    fn could_listen(&self) -> Result<(), String> {
        self.0.could_listen()
    }

    fn listen(&self, exports: Arc<ExportTable>, options: &ListenOptions) -> Result<Box<dyn Listener>, String> {
        let options = NbdOptions { listen: options.clone(), ..NbdOptions::default() };
        Ok(Box::new(listen(&self.0, exports, options)?))
    }

    fn adopt(
        &self,
        handed_over: HandedOver,
        exports: Arc<ExportTable>,
        options: &ListenOptions,
    ) -> Result<Box<dyn Listener>, String> {
        let options = NbdOptions { listen: options.clone(), ..NbdOptions::default() };
        let Makers { connection, handed_over: make_travelled } = makers(&exports, &options);
        let listener = SocketListener::adopt(&self.0, handed_over, &exports, options.listen, &NAMES, connection)?;
        Ok(Box::new(listener.with_travelled(make_travelled)))
    }
}

/// The two ways to a connection.
struct Makers {
    connection: MakeConnection,
    handed_over: MakeTravelled,
}

fn makers(exports: &Arc<ExportTable>, options: &NbdOptions) -> Makers {
    let (exports, options) = (exports.clone(), Arc::new(options.clone()));
    let (of_travelled, with) = (exports.clone(), options.clone());
    Makers {
        connection: Box::new(move |place| Box::new(Connection::new(place, exports.clone(), options.clone()))),
        handed_over: Box::new(move |place, reader| {
            Ok(Box::new(Connection::unpack(place, of_travelled.clone(), with.clone(), reader)?))
        }),
    }
}

/// Listens for NBD clients of `exports` on `address`.
///
/// # Errors
/// One sentence for the user, which names the address.
pub fn listen(
    address: &SocketAddress,
    exports: Arc<ExportTable>,
    options: NbdOptions,
) -> Result<SocketListener, String> {
    let Makers { connection, handed_over } = makers(&exports, &options);
    let listener = SocketListener::bind(address, &exports, options.listen, &NAMES, connection)?;
    Ok(listener.with_travelled(handed_over))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::front_end::ExportAddress;

    #[test]
    fn addresses_collide_if_they_take_the_same_socket() {
        let address = |text| ExportAddress::parse(&Nbd, text).unwrap();
        let unix = address("unix:/a");
        assert!(!unix.collides_with(&address("unix:/a")), "several exports at one address");
        assert!(!unix.collides_with(&address("unix:/b")));
        assert_eq!((unix.to_string(), format!("{unix:?}")), ("unix:/a".to_owned(), "nbd at unix:/a".to_owned()));
        assert_eq!(unix.address().claim().as_deref(), Some("unix:/a"));
        assert_eq!(address("tcp:localhost:0").address().claim(), None, "the kernel chooses another port each time");
    }
}
