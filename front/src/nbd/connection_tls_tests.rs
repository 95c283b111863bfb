//! A connection under TLS, with rustls' own client at the other end.

use super::super::super::wire::option_reply;
use super::*;
use crate::identity::{Access, Identity};
use crate::tls::{Keys, Material, Offer};
use rcgen::{BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, IsCa, KeyPair};
use rcgen::{KeyIdMethod, RevokedCertParams, SerialNumber};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use std::io::{Read, Write};
use std::sync::LazyLock;

/// An authority and what it has signed.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Authority {
        Authority::called("an authority")
    }

    fn called(name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    /// Certificate and key, of `name`, until the end of `year`.
    fn sign(&self, name: &str, year: i32) -> (String, String) {
        self.sign_as(name, year, None)
    }

    /// Signs with this serial number if there is one.
    fn sign_as(&self, name: &str, year: i32, serial: Option<u64>) -> (String, String) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(year, 12, 31);
        params.serial_number = serial.map(SerialNumber::from);
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }

    /// The list of those that it has revoked, whose next one was due in 2021.
    fn revoke(&self, serials: &[u64]) -> String {
        let one = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: rcgen::date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: rcgen::date_time_ymd(2020, 1, 2),
            next_update: rcgen::date_time_ymd(2021, 1, 2),
            crl_number: SerialNumber::from(1u64),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(one).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.0).unwrap().pem().unwrap()
    }
}

static OURS: LazyLock<Authority> = LazyLock::new(Authority::new);
static OTHERS: LazyLock<Authority> = LazyLock::new(Authority::new);

/// Keys of the server.
pub(super) static KEYS: LazyLock<Arc<Keys>> = LazyLock::new(|| Keys::new(&material(true)));

fn material(asks: bool) -> Material {
    let (certificate, key) = OURS.sign("localhost", 4000);
    let authority = OURS.pem();
    Material::from_pem(certificate.as_bytes(), key.as_bytes(), asks.then_some(authority.as_bytes()), None).unwrap()
}

fn client_config(
    certified: Option<&(String, String)>,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(OURS.pem().as_bytes()).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots);
    match certified {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => builder
            .with_client_auth_cert(
                vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
            )
            .unwrap(),
    }
}

/// The connection, and a client that speaks TLS with it.
pub struct Tls {
    peer: Peer<Connection>,
    client: ClientConnection,
    /// Error of the client's session, if it failed.
    error: Option<String>,
    ended: bool,
    /// Bytes that it has decrypted.
    plain: Vec<u8>,
}

/// The two sides, as the fuzz target has them as well.
impl Tls {
    fn over(peer: Peer<Connection>, config: ClientConfig) -> Tls {
        let client = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
        Tls { peer, client, error: None, ended: false, plain: Vec::new() }
    }

    /// After STARTTLS and the handshake.
    fn begin(peer: Peer<Connection>, config: ClientConfig) -> Tls {
        let mut tls = Tls::over(peer, config);
        let acked = tls.peer.ask(&[vec![0, 0, 0, 3], option(option::STARTTLS, b"")].concat());
        assert!(acked.ends_with(&[0, 0, 0, 5, 0, 0, 0, 1, 0, 0, 0, 0]), "{acked:?}");
        tls.exchange();
        tls
    }

    /// Moves bytes both ways until neither side has any.
    fn exchange(&mut self) {
        loop {
            let mut sent = Vec::new();
            while self.error.is_none() && self.client.wants_write() {
                self.client.write_tls(&mut sent).unwrap();
            }
            let mut came = self.peer.ask(&sent);
            // Other turns, for handshakes that wait for one.
            self.peer.pass_ns(1);
            came.extend(std::mem::take(&mut self.peer.read));
            if sent.is_empty() && came.is_empty() {
                return;
            }
            let mut rest = &came[..];
            while !rest.is_empty() {
                if self.client.read_tls(&mut rest).is_err() {
                    return;
                }
                match self.client.process_new_packets() {
                    Ok(state) => {
                        self.ended |= state.peer_has_closed();
                        // WouldBlock or the end: there is no more.
                        let _ = self.client.reader().read_to_end(&mut self.plain);
                    }
                    Err(error) => {
                        self.error.get_or_insert(error.to_string());
                        return;
                    }
                }
            }
        }
    }

    fn ask(&mut self, bytes: &[u8]) -> Vec<u8> {
        // The session takes so much at a time.
        for piece in bytes.chunks(16 << 10) {
            // A session that is broken takes none.
            let _ = self.client.writer().write_all(piece);
            self.exchange();
        }
        self.exchange();
        std::mem::take(&mut self.plain)
    }
}

pub(super) fn tls_options(keys: &Arc<Keys>, is_required: bool) -> NbdOptions {
    listen(ListenOptions { tls: Some(Offer { keys: keys.clone(), is_required }), ..ListenOptions::default() })
}

fn alice() -> (String, String) {
    OURS.sign("alice.example", 4000)
}

fn connect_tls(config: ClientConfig) -> Tls {
    Tls::begin(connect_with(tls_options(&KEYS, true), &Stats::new(&NAMES)), config)
}

/// Names and numbers of replies to options.
pub(super) fn replies(bytes: &[u8]) -> Vec<(u32, u32)> {
    let mut reader = Reader(bytes);
    let mut all = Vec::new();
    while reader.u64().is_some() {
        let (option, kind) = (reader.u32().unwrap(), reader.u32().unwrap());
        reader.counted().unwrap();
        all.push((option, kind));
    }
    all
}

#[test]
fn requests_under_tls_are_those_in_the_clear_however_the_bytes_are_cut() {
    for (version, piece_bytes) in
        [(&rustls::version::TLS13, usize::MAX), (&rustls::version::TLS12, usize::MAX), (&rustls::version::TLS13, 1)]
    {
        let mut peer = connect_with(tls_options(&KEYS, true), &Stats::new(&NAMES));
        peer.piece_bytes = piece_bytes;
        let mut tls = Tls::begin(peer, client_config(Some(&alice()), &[version]));
        assert_eq!(tls.error, None);
        let agreed = tls.ask(&[option(option::STRUCTURED_REPLY, b""), option(option::GO, &[0; 6])].concat());
        assert_eq!(replies(&agreed), [(8, 1), (7, 3), (7, 1)]);
        // One request that fits a record, one of several pieces.
        for length_bytes in [4096, 300 << 10] {
            let payload: Vec<u8> = (0..length_bytes).map(|at| (at % 251) as u8).collect();
            assert_eq!(chunks(&tls.ask(&write(1, 8192, &payload))).len(), 1);
            assert_eq!(tls.peer.fake.store[SIZE + 8192..][..length_bytes], payload);
            let read = chunks(&tls.ask(&read(2, 8192, length_bytes as u32)));
            let data: Vec<u8> = read.iter().flat_map(|(_, _, data)| &data[8..]).copied().collect();
            assert!(data == payload, "{length_bytes} bytes came back otherwise");
        }
        tls.client.refresh_traffic_keys().ok();
        assert_eq!(chunks(&tls.ask(&flush(3))).len(), 1, "after a change of keys");
    }
}

#[test]
fn an_address_that_needs_tls_answers_everything_else_with_that_until_it_is_there() {
    let mut peer = connect_with(tls_options(&KEYS, true), &Stats::new(&NAMES));
    peer.ask(&[0, 0, 0, 3]);
    let numbers = [3, 6, 7, 8, 9, 10, 11, 4, 77];
    let asked: Vec<u8> = numbers.iter().flat_map(|number| option(*number, b"x")).collect();
    let expected: Vec<(u32, u32)> = numbers.iter().map(|number| (*number, option_reply::ERR_TLS_REQD)).collect();
    assert_eq!(replies(&peer.ask(&asked)), expected);
    assert_eq!(replies(&peer.ask(&option(3, &[0; 20 << 10]))), [(3, option_reply::ERR_TLS_REQD)], "skipped");
    assert_eq!(replies(&peer.ask(&option(option::STARTTLS, b"x"))), [(5, option_reply::ERR_INVALID)]);
    assert_eq!(replies(&peer.ask(&option(option::ABORT, b""))), [(2, 1)]);
    assert!(peer.gone());
    let mut peer = connect_with(tls_options(&KEYS, true), &Stats::new(&NAMES));
    assert_eq!(peer.ask(&[vec![0, 0, 0, 3], option(option::EXPORT_NAME, b"a")].concat()).len(), 18, "the greeting");
    assert!(peer.gone());
    let mut none = connect();
    none.ask(&[0, 0, 0, 3]);
    assert_eq!(replies(&none.ask(&option(option::STARTTLS, b""))), [(5, option_reply::ERR_UNSUP)]);
}

#[test]
fn starttls_forgets_what_was_agreed_on_and_comes_once() {
    let keys = Keys::new(&material(false));
    let mut peer = connect_with(tls_options(&keys, false), &Stats::new(&NAMES));
    let before = structured_handshake();
    let without_go = &before[..before.len() - 22];
    assert_eq!(replies(&peer.ask(without_go)[18..]).len(), 3);
    peer.read.clear();
    let mut tls = Tls::over(peer, client_config(None, &[&rustls::version::TLS13]));
    assert_eq!(replies(&tls.peer.ask(&option(option::STARTTLS, b""))), [(5, 1)]);
    tls.exchange();
    let context = [&[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 15][..], b"base:allocation"].concat();
    let asked = [option(option::SET_META_CONTEXT, &context), option(option::STARTTLS, b"")].concat();
    assert_eq!(replies(&tls.ask(&asked)), [(10, option_reply::ERR_INVALID), (5, option_reply::ERR_INVALID)]);
    tls.ask(&option(option::GO, &[0; 6]));
    let simple = tls.ask(&read(9, 0, 4));
    assert_eq!(simple.len(), 16 + 4, "replies are simple again");
}

#[test]
fn bytes_behind_starttls_in_the_clear_close_the_connection() {
    let stats = Stats::new(&NAMES);
    let mut peer = connect_with(tls_options(&KEYS, false), &stats);
    peer.ask(&[vec![0, 0, 0, 3], option(option::STARTTLS, b""), option(option::LIST, b"")].concat());
    assert!(peer.gone());
    assert_eq!(stats.broken(Rule::BytesBeforeTls), 1);
}

#[test]
fn who_has_no_good_certificate_does_not_come_in() {
    let expired = OURS.sign("alice.example", 2020);
    let of_another = OTHERS.sign("alice.example", 4000);
    for (what, certified) in [("none", None), ("expired", Some(&expired)), ("of another authority", Some(&of_another))]
    {
        for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
            let mut tls = connect_tls(client_config(certified, &[version]));
            assert_eq!(tls.ask(&option(option::LIST, b"")), b"", "{what}");
            assert!(tls.error.as_ref().is_some_and(|error| error.contains("alert")), "{what}: {:?}", tls.error);
            assert!(tls.peer.gone(), "{what}");
        }
    }
}

#[test]
fn a_certificate_that_was_revoked_is_a_strangers_from_the_next_connection_on() {
    let (certificate, key) = OURS.sign("localhost", 4000);
    let (authority, of_others) = (OURS.pem(), Authority::called("another").revoke(&[]));
    let material = |revoked: &str| {
        let [certificate, key, authority] = [&certificate, &key, &authority].map(|text| text.as_bytes());
        Material::from_pem(certificate, key, Some(authority), Some(revoked.as_bytes()))
    };
    let (alice, bob) = (OURS.sign_as("alice.example", 4000, Some(7)), OURS.sign_as("bob.example", 4000, Some(8)));
    let keys = Keys::new(&material(&OURS.revoke(&[])).unwrap());
    let comes_in = |whose: &(String, String)| {
        let all = [&rustls::version::TLS13, &rustls::version::TLS12].map(|version| {
            let peer = connect_with(tls_options(&keys, true), &Stats::new(&NAMES));
            let mut tls = Tls::begin(peer, client_config(Some(whose), &[version]));
            let is_in = !tls.ask(&option(option::LIST, b"")).is_empty();
            assert!(is_in || tls.error.as_ref().is_some_and(|error| error.contains("alert")), "{:?}", tls.error);
            is_in
        });
        assert_eq!(all[0], all[1]);
        all[0]
    };
    let mut there = Tls::begin(
        connect_with(tls_options(&keys, true), &Stats::new(&NAMES)),
        client_config(Some(&alice), &[&rustls::version::TLS13]),
    );
    assert!(comes_in(&alice) && comes_in(&bob));
    // One list alone, and beside that of another authority.
    let news = |revoked: &[u64]| material(&OURS.revoke(revoked)).unwrap();
    assert!(news(&[7]) != news(&[]), "another list is a change");
    for also in ["", &of_others] {
        keys.replace(&material(&format!("{also}{}", OURS.revoke(&[7]))).unwrap());
        assert!(!comes_in(&alice) && comes_in(&bob));
    }
    assert!(!there.ask(&option(option::LIST, b"")).is_empty(), "whoever is there stays");
    for nobodys in [&of_others, &OTHERS.revoke(&[])] {
        keys.replace(&material(nobodys).unwrap());
        assert!(!comes_in(&bob), "nobody says that it was not revoked, or a forger does");
    }

    let mut broken = OURS.revoke(&[]);
    let start = broken.find('\n').unwrap() + 1;
    broken.replace_range(start..start + 3, "AAA");
    for (text, why) in [
        ("", "holds no list of revoked certificates in PEM form"),
        (&authority[..], "holds no list of revoked certificates in PEM form"),
        (&broken[..], "holds a list of revoked certificates that cannot be used: "),
    ] {
        let fault = material(text).unwrap_err();
        assert_eq!(fault.key, "client-crl");
        assert!(fault.why.starts_with(why), "{fault:?}");
    }
}

#[test]
fn an_export_of_others_is_not_there_for_any_option() {
    let exports = table();
    let state = exports.all()[0].state.clone();
    let answers = |allowed: Option<&str>, name: &[u8]| {
        let identities = allowed.map(|name| Identity::parse(name).unwrap()).into_iter().collect();
        state.admit(Arc::new(Access { identities, ..Access::default() }));
        let peer = connect_to(exports.clone(), tls_options(&KEYS, true), &Stats::new(&NAMES));
        let mut tls = Tls::begin(peer, client_config(Some(&alice()), &[&rustls::version::TLS13]));
        let counted = [&(name.len() as u32).to_be_bytes()[..], name].concat();
        let info = [&counted[..], &[0, 0]].concat();
        let context = [&counted[..], &[0, 0, 0, 1, 0, 0, 0, 15], b"base:allocation"].concat();
        tls.ask(
            &[
                option(option::STRUCTURED_REPLY, b""),
                option(option::LIST, b""),
                option(option::INFO, &info),
                option(option::LIST_META_CONTEXT, &context),
                option(option::SET_META_CONTEXT, &context),
                option(option::GO, &info),
            ]
            .concat(),
        )
    };
    let allowed = replies(&answers(Some("dns:alice.example"), b"a"));
    assert_eq!(allowed, [(8, 1), (3, 2), (3, 1), (6, 3), (6, 1), (9, 4), (9, 1), (10, 4), (10, 1), (7, 3), (7, 1)]);
    let unknown = option_reply::ERR_UNKNOWN;
    let refused = answers(Some("dns:bob.example"), b"a");
    assert_eq!(replies(&refused), [(8, 1), (3, 1), (6, unknown), (9, unknown), (10, unknown), (7, unknown)]);
    assert_eq!(refused, answers(Some("dns:bob.example"), b"b"), "byte for byte as of one that there is not");
    assert_eq!(refused, answers(Some("cn:alice.example"), b"a"), "another kind of name");
    assert_eq!(answers(None, b"a").len(), answers(Some("dns:alice.example"), b"a").len(), "no list, anybody");
}

#[test]
fn noise_and_half_handshakes_end_and_leave_nothing() {
    let starttls = [vec![0, 0, 0, 3], option(option::STARTTLS, b"")].concat();
    let mut hello = Vec::new();
    let client = client_config(None, &[&rustls::version::TLS13]);
    ClientConnection::new(Arc::new(client), "localhost".try_into().unwrap()).unwrap().write_tls(&mut hello).unwrap();
    // Not TLS; too long; a record that is no handshake; one without end; a hello that is cut, once in two records.
    let endless = [&[0x16, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff][..], &[0; 40 << 10]].concat();
    for (what, bytes) in [
        ("an option", option(option::LIST, b"")),
        ("zeroes", vec![0; 100]),
        ("data", vec![0x17, 3, 3, 0, 1, 0]),
        ("endless", endless),
    ] {
        let mut peer = connect_with(tls_options(&KEYS, true), &Stats::new(&NAMES));
        peer.ask(&starttls);
        peer.ask(&bytes);
        peer.pass_ns(1);
        assert!(peer.gone(), "{what}");
    }
    for cut in [1, 5, 6, hello.len() / 2, hello.len() - 1] {
        let stats = Stats::new(&NAMES);
        let mut peer = connect_with(tls_options(&KEYS, true), &stats);
        peer.ask(&starttls);
        assert_eq!(peer.ask(&hello[..cut]), b"", "{cut}");
        assert!(!peer.gone(), "{cut}");
        peer.pass_ns(11_000_000_000);
        assert!(peer.gone(), "{cut}: its time is over");
        assert_eq!(stats.broken(Rule::HandshakeTooSlow), 1);
    }
}

#[test]
fn a_client_is_told_goodbye_when_it_disconnects_and_when_the_server_drains() {
    for drains in [false, true] {
        let mut tls = connect_tls(client_config(Some(&alice()), &[&rustls::version::TLS13]));
        tls.ask(&[option(option::STRUCTURED_REPLY, b""), option(option::GO, &[0; 6])].concat());
        if drains {
            tls.peer.drain();
            tls.exchange();
        } else {
            tls.ask(&header(Command::Disconnect, 0, 1, 0, 0));
        }
        assert!(tls.ended && tls.peer.gone(), "drains: {drains}, close_notify: {}", tls.ended);
    }
}

#[test]
fn handshakes_take_turns_and_the_second_comes_in_the_next() {
    let mut hellos = Vec::new();
    for now_ns in [1 << 30, (1 << 30) + 1_000_000] {
        let mut peer = connect_with(tls_options(&KEYS, true), &Stats::new(&NAMES));
        // Time goes on within a turn, after the step of the one before as well.
        (peer.fake.now_ns, peer.fake.turn) = (now_ns, Some(7));
        peer.ask(&[vec![0, 0, 0, 3], option(option::STARTTLS, b"")].concat());
        let mut hello = Vec::new();
        let client = client_config(None, &[&rustls::version::TLS13]);
        let mut client = ClientConnection::new(Arc::new(client), "localhost".try_into().unwrap()).unwrap();
        client.write_tls(&mut hello).unwrap();
        let answered = !peer.ask(&hello).is_empty();
        let waits = peer.fake.timers.iter().any(|(_, user)| *user == user::TURN);
        hellos.push((answered, waits));
        peer.pass_ns(1);
        assert!(answered || peer.read.is_empty(), "another time is no other turn");
        peer.fake.turn = Some(8);
        peer.pass_ns(1);
        assert!(answered == peer.read.is_empty(), "in this turn or in the next");
    }
    assert_eq!(hellos, [(true, false), (false, true)], "one in a turn");
}

#[test]
fn memory_of_tls_counts_and_a_piece_fits_always() {
    let mut options = tls_options(&KEYS, true);
    options.listen.bytes_in_flight_max = 4096;
    let exports = table();
    let peer = connect_to(exports.clone(), options, &Stats::new(&NAMES));
    let memory = exports.all()[0].memory.clone();
    let mut tls = Tls::begin(peer, client_config(Some(&alice()), &[&rustls::version::TLS13]));
    assert_eq!(memory.held_bytes(), 0, "nobody's before an export is chosen");
    tls.ask(&[option(option::STRUCTURED_REPLY, b""), option(option::GO, &[0; 6])].concat());
    assert_eq!(memory.held_bytes(), STANDING_BYTES);
    tls.peer.executes = false;
    tls.ask(&[read(1, 0, 65536), read(2, 0, 65536)].concat());
    assert_eq!(memory.held_bytes(), STANDING_BYTES + 65536, "one fits, the other waits");
    tls.peer.executes = true;
    tls.peer.run();
    assert_eq!(chunks(&tls.ask(b"")).len(), 2);
    assert_eq!(memory.held_bytes(), STANDING_BYTES);
    drop(tls);
    assert_eq!(memory.held_bytes(), 0);
}

#[test]
fn a_session_does_not_travel_and_ends_as_at_a_drain_when_another_process_comes() {
    let mut tls = connect_tls(client_config(Some(&alice()), &[&rustls::version::TLS13]));
    tls.ask(&[option(option::STRUCTURED_REPLY, b""), option(option::GO, &[0; 6])].concat());
    tls.peer.executes = false;
    tls.ask(&read(1, 0, 4096));
    tls.peer.client.pause(&mut tls.peer.fake);
    tls.peer.client.turn_end(&mut tls.peer.fake);
    assert!(!tls.peer.client.is_paused(), "a request is under way");
    tls.peer.executes = true;
    tls.peer.run();
    let answered = tls.ask(b"");
    assert_eq!(chunks(&answered).len(), 1, "it was answered");
    assert!(tls.peer.client.is_paused() && tls.ended, "and close_notify came behind it");
    assert!(tls.peer.client.pack(mqfq_blk::state::VERSION).unwrap().is_none());
}

#[test]
fn a_silent_client_of_tls_holds_the_next_process_up_for_a_second() {
    let mut tls = connect_tls(client_config(Some(&alice()), &[&rustls::version::TLS13]));
    tls.ask(&[option(option::STRUCTURED_REPLY, b""), option(option::GO, &[0; 6])].concat());
    tls.ask(&read(1, 0, 4096));
    // It takes no reply and no goodbye from here on.
    tls.peer.reads = false;
    tls.client.writer().write_all(&read(2, 0, 4096)).unwrap();
    let mut sent = Vec::new();
    tls.client.write_tls(&mut sent).unwrap();
    tls.peer.say(&sent);
    tls.peer.client.pause(&mut tls.peer.fake);
    tls.peer.client.turn_end(&mut tls.peer.fake);
    tls.peer.pass_ns(999_999_999);
    assert!(!tls.peer.client.is_paused() && !tls.peer.fake.shut_down, "its reply has not left");
    tls.peer.pass_ns(1);
    assert!(tls.peer.client.is_paused() && tls.peer.fake.shut_down);
    tls.peer.reads = true;
    tls.peer.run();
    assert!(tls.peer.gone());
}

#[test]
fn each_session_begins_with_a_whole_handshake() {
    for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
        // It keeps what a server gives it to resume with.
        let config = client_config(Some(&alice()), &[version]);
        for _ in 0..2 {
            let tls = connect_tls(config.clone());
            assert_eq!(tls.error, None);
            assert_eq!(tls.client.handshake_kind(), Some(rustls::HandshakeKind::Full));
            assert_eq!(tls.client.tls13_tickets_received(), 0);
        }
    }
}

#[test]
fn a_user_of_a_unix_socket_is_still_known_under_tls() {
    let tls = connect_tls(client_config(Some(&alice()), &[&rustls::version::TLS13]));
    let ProtocolPhase::Negotiating(negotiation) = &tls.peer.client.phase else { panic!("no export was chosen") };
    let peer = negotiation.peer();
    assert!(peer.credentials.is_some() && peer.credentials == tls.peer.client.place.peer().credentials);
    assert!(!peer.names.is_empty(), "and by the names of its certificate");
}

#[test]
fn a_certificate_is_for_the_hosts_that_it_names() {
    for (name, hosts, others) in [
        ("storage.example", &["storage.example", "STORAGE.example"][..], &["a.storage.example", "example", ""][..]),
        ("*.example", &["a.example", "B.Example"], &["example", "a.b.example", "a.example.evil"]),
    ] {
        let (certificate, key) = OURS.sign(name, 4000);
        let keys = Keys::new(&Material::from_pem(certificate.as_bytes(), key.as_bytes(), None, None).unwrap());
        assert!(hosts.iter().all(|host| keys.is_for(host)), "{name}");
        assert!(!others.iter().any(|host| keys.is_for(host)), "{name}");
    }
}
