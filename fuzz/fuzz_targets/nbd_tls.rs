//! A session under TLS, both of whose sides meet mutated bytes: the server what no client sends, and the client, which
//! is rustls' own, what comes back.
//!
//! Must hold: no panic, every step uses bytes or ends, and a session that broke says no more than its alert.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use mqfq_blk::buffer::Buffer;
use mqfq_blk::client::Part;
use mqfq_front::nbd::channel::{Channel, Step};
use mqfq_front::nbd::inbox::Inbox;
use mqfq_front::tls::{Keys, Material};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use std::io::{Read, Write};
use std::sync::{Arc, LazyLock};

/// A change of the next bytes of either direction.
#[derive(Arbitrary, Debug)]
enum Change {
    Pass,
    Flip { place: u16, mask: u8 },
    Cut { bytes: u16 },
    Insert { place: u16, bytes: Vec<u8> },
    Twice,
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Change::Flip { place, mask } if !bytes.is_empty() => {
                let place = usize::from(*place) % bytes.len();
                bytes[place] ^= mask;
            }
            Change::Pass | Change::Flip { .. } => {}
            Change::Cut { bytes: count } => bytes.truncate(usize::from(*count)),
            Change::Insert { place, bytes: more } => {
                let place = usize::from(*place) % (bytes.len() + 1);
                bytes.splice(place..place, more.iter().copied());
            }
            Change::Twice => bytes.extend_from_within(..),
        }
    }
}

static SIDES: LazyLock<(Arc<Keys>, Arc<ClientConfig>)> = LazyLock::new(|| {
    let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let (certificate, key) = (own.cert.pem(), own.signing_key.serialize_pem());
    let material = Material::from_pem(certificate.as_bytes(), key.as_bytes(), None, None).expect("good material");
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(certificate.as_bytes()).expect("as made")).expect("a root");
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("both versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    (Keys::new(&material), Arc::new(config))
});

/// The server takes `bytes`. True: it goes on.
fn take(channel: &mut Channel, plain: &mut Inbox, mut bytes: &[u8]) -> bool {
    loop {
        // As many steps as there are records, and one for each that was found while something was encrypted.
        for step in 0.. {
            assert!(step < 1 << 16, "steps without end");
            if !channel.can_advance() {
                break;
            }
            match channel.advance(plain) {
                Step::Moved | Step::Established(_) => plain.consume(plain.unread().len()),
                Step::Ended | Step::Broken(_) => return false,
            }
        }
        if bytes.is_empty() {
            return true;
        }
        let Some((mut buffer, from, to)) = channel.lend() else { return false };
        let (now, rest) = bytes.split_at(bytes.len().min(to - from));
        buffer.as_mut_slice()[from..from + now.len()].copy_from_slice(now);
        channel.put_back(buffer, now.len());
        bytes = rest;
    }
}

fuzz_target!(|changes: Vec<Change>| {
    let (keys, config) = &*SIDES;
    let mut channel = Channel::new(keys.now()).expect("a good config");
    let mut client = ClientConnection::new(config.clone(), "localhost".try_into().expect("a name")).expect("a client");
    let mut plain = Inbox::new(128 << 10);
    let _ = client.writer().write_all(b"a request");
    for pair in changes.chunks(2) {
        let mut to_server = Vec::new();
        while client.wants_write() && client.write_tls(&mut to_server).is_ok() {}
        pair[0].apply(&mut to_server);
        let goes_on = take(&mut channel, &mut plain, &to_server);
        let reply = match channel.is_established() {
            true => vec![Part::Payload { buffer: Buffer::new(20_000), length_bytes: 20_000 }],
            false => Vec::new(),
        };
        let parts = channel.seal(&reply);
        let mut to_client: Vec<u8> = parts.iter().flat_map(Part::as_slice).copied().collect();
        if !goes_on {
            // The broken bytes may follow a correct hello, which was answered with a certificate.
            assert!(to_client.len() < 2048 || channel.is_established(), "an alert, not {} bytes", to_client.len());
            return;
        }
        pair.get(1).into_iter().for_each(|change| change.apply(&mut to_client));
        let mut rest = &to_client[..];
        while !rest.is_empty() && client.read_tls(&mut rest).is_ok() {
            if client.process_new_packets().is_err() {
                return;
            }
            let _ = client.reader().read_to_end(&mut Vec::new());
        }
    }
    channel.say_goodbye();
    let _ = channel.seal(&[]);
});
