//! The handshake: from the greeting to a [`Session`], or to a closed connection.
//!
//! Source: NBD protocol, "fixed newstyle negotiation". No I/O: bytes in, bytes out, and one [`Progress`] for each
//! message of the client. How the bytes were cut into pieces makes no difference.
//!
//! # Shape
//! ```text
//! greeting ─▶ client flags ─▶ ┌▶ option header ─▶ its data ──answer──┐ ─▶ Transmit (GO, EXPORT_NAME)
//!                             │        └─ too much ─▶ skip ──answer──┤ ─▶ Close
//!                             └──────────────────────────────────────┘
//! ```
//!
//! # Bounds
//! A client can make us hold [`OPTION_BYTES_MAX`] and hear [`HANDSHAKE_BYTES_MAX`] in at most [`OPTIONS_MAX`] options.
//! The caller bounds the answers: it stops calling while too much is unsent. A call answers with one export of a list,
//! so a list takes no more memory than any other answer, however many exports there are. Whether an export may be
//! chosen, by GO or by EXPORT_NAME, is for the caller to say as well ([`Admit`]).
//!
//! # TLS
//! The protocol's modes NOTLS, FORCEDTLS and SELECTIVETLS without exports that demand it: [`Tls`]. After STARTTLS the
//! caller gives no byte before the TLS handshake is over ([`Negotiation::secured`]); what was agreed on in the clear is
//! forgotten then, but for the client's flags, which are not said again.
//!
//! # Who may have what
//! An export that the client may not have ([`crate::identity`]) is not there for it: no option answers otherwise than
//! for a name that no export has.

use super::rule::Rule;
use super::validate::Session;
use super::wire::{self, Reader, handshake, info, option, option_reply, put_option_reply, transmission};
use crate::export::{Export, ExportTable, NAME_BYTES_MAX};
use crate::identity::Peer;
use mqfq_blk::state::{EXTENDED_SINCE, LISTING_SINCE, StateFault, StateReader, StateWriter, demand};
use std::collections::VecDeque;
use std::sync::Arc;

/// Longest data of one option that are kept, bytes: a name of 4096 bytes and far more information requests or queries
/// than exist. Longer data are skipped and the option fails.
pub const OPTION_BYTES_MAX: usize = 16 << 10;

/// All options together, bytes. A longer handshake is closed.
pub const HANDSHAKE_BYTES_MAX: usize = 1 << 20;

/// Options of one handshake. More are closed.
pub const OPTIONS_MAX: u32 = 1024;

/// True if a client may have this export now. Asked when it has chosen an existing one; if true, that was its last
/// option.
pub type Admit<'a> = &'a mut dyn FnMut(&Export) -> bool;

/// Result of the bytes so far.
#[derive(Debug)]
pub enum Progress {
    /// Every byte was used; the message is not whole.
    More,
    /// One message was taken, and answered if it was an option. Call again.
    Answered {
        /// Rule that refused the option, if any did.
        refused: Option<Rule>,
    },
    /// TLS follows: the answer leaves in the clear, and nothing after it.
    StartTls,
    /// Requests follow.
    Transmit(Session),
    /// Send what there is to send and close.
    Close {
        /// Rule that was broken; none if the client asked for the end.
        broken: Option<Rule>,
    },
}

/// TLS of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tls {
    /// The address has none (NOTLS).
    Off,
    /// The client may begin it (SELECTIVETLS).
    Offered,
    /// The client must begin it (FORCEDTLS).
    Required,
    /// The connection is under TLS.
    On,
}

/// One handshake.
#[derive(Debug)]
pub struct Negotiation {
    exports: Arc<ExportTable>,
    tls: Tls,
    peer: Peer,
    stage: Stage,
    /// The beginning of a message that is not whole.
    gathered: Vec<u8>,
    fixed_newstyle: bool,
    no_zeroes: bool,
    structured: bool,
    /// Headers are extended, and replies structured.
    extended: bool,
    /// Export for which base:allocation was chosen.
    block_status_of: Option<Arc<Export>>,
    options: u32,
    bytes_left: usize,
    /// Exports that LIST has not answered with.
    listing: Option<VecDeque<Arc<Export>>>,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    Flags,
    Header,
    Data { option: u32, length_bytes: usize },
    Skip { option: u32, left_bytes: usize },
    Over,
}

/// An option refused: the type of the reply, and why.
type Refusal = (u32, Rule);

impl Negotiation {
    /// A handshake about `exports`.
    pub fn new(exports: Arc<ExportTable>) -> Negotiation {
        Negotiation {
            exports,
            tls: Tls::Off,
            peer: Peer::default(),
            stage: Stage::Flags,
            gathered: Vec::new(),
            fixed_newstyle: false,
            no_zeroes: false,
            structured: false,
            extended: false,
            block_status_of: None,
            options: 0,
            bytes_left: HANDSHAKE_BYTES_MAX,
            listing: None,
        }
    }

    /// Returns this negotiation with `peer`, at an address of this kind.
    #[must_use]
    pub fn with(self, tls: Tls, peer: Peer) -> Negotiation {
        Negotiation { tls, peer, ..self }
    }

    /// The TLS handshake is over: the client is `peer`, and has agreed on nothing.
    pub fn secured(&mut self, peer: Peer) {
        (self.tls, self.peer) = (Tls::On, peer);
        (self.structured, self.extended, self.block_status_of) = (false, false, None);
    }

    /// The client's identity.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Appends what the server says first.
    pub fn greeting(out: &mut Vec<u8>) {
        out.extend(wire::GREETING_MAGIC.to_be_bytes());
        out.extend(wire::OPTION_MAGIC.to_be_bytes());
        out.extend((handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES).to_be_bytes());
    }

    /// Nothing of an unfinished message has come: a client may leave here.
    pub fn between_messages(&self) -> bool {
        self.gathered.is_empty() && matches!(self.stage, Stage::Flags | Stage::Header | Stage::Over)
    }

    /// Takes at most one message off `input` and appends its answer to `out`. Returns the bytes used, and what came of
    /// them. After [`Progress::Transmit`] and [`Progress::Close`] the handshake is over.
    pub fn advance(&mut self, input: &[u8], out: &mut Vec<u8>, admit: Admit<'_>) -> (usize, Progress) {
        if self.listing.is_some() {
            self.list_next(out);
            return (0, Progress::Answered { refused: None });
        }
        let mut used = 0;
        loop {
            let wanted = match self.stage {
                Stage::Flags => wire::CLIENT_FLAGS_BYTES,
                Stage::Header => wire::OPTION_HEADER_BYTES,
                Stage::Data { length_bytes, .. } => length_bytes,
                Stage::Skip { option, left_bytes } => {
                    let skipped = left_bytes.min(input.len() - used);
                    used += skipped;
                    self.stage = Stage::Skip { option, left_bytes: left_bytes - skipped };
                    if skipped < left_bytes {
                        return (used, Progress::More);
                    }
                    self.stage = Stage::Header;
                    return (used, refuse(option, self.too_big(option), out));
                }
                Stage::Over => return (used, Progress::Close { broken: None }),
            };
            let taken = (wanted - self.gathered.len()).min(input.len() - used);
            self.gathered.extend_from_slice(&input[used..used + taken]);
            used += taken;
            if self.gathered.len() < wanted {
                return (used, Progress::More);
            }
            let message = std::mem::take(&mut self.gathered);
            let progress = match self.stage {
                Stage::Flags => self.client_flags(&message),
                Stage::Header => self.option_header(&message),
                Stage::Data { option, .. } => {
                    self.stage = Stage::Header;
                    Some(self.option(option, &message, out, admit))
                }
                Stage::Skip { .. } | Stage::Over => unreachable!("handled above, they gather nothing"),
            };
            if let Some(progress) = progress {
                if matches!(progress, Progress::Transmit(_) | Progress::Close { .. }) {
                    self.stage = Stage::Over;
                }
                return (used, progress);
            }
        }
    }

    fn client_flags(&mut self, message: &[u8]) -> Option<Progress> {
        let flags = Reader(message).u32()?;
        let offered = u32::from(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
        if flags & !offered != 0 {
            return Some(Progress::Close { broken: Some(Rule::UnknownClientFlags) });
        }
        self.fixed_newstyle = flags & u32::from(handshake::FIXED_NEWSTYLE) != 0;
        self.no_zeroes = flags & u32::from(handshake::NO_ZEROES) != 0;
        self.stage = Stage::Header;
        Some(Progress::Answered { refused: None })
    }

    fn option_header(&mut self, message: &[u8]) -> Option<Progress> {
        let mut reader = Reader(message);
        let (magic, option, length) = (reader.u64()?, reader.u32()?, reader.u32()? as usize);
        let broken = |rule| Some(Progress::Close { broken: Some(rule) });
        if magic != wire::OPTION_MAGIC {
            return broken(Rule::BadOptionMagic);
        }
        let Some(bytes_left) = self.bytes_left.checked_sub(wire::OPTION_HEADER_BYTES.saturating_add(length)) else {
            return broken(Rule::HandshakeTooLong);
        };
        if self.options == OPTIONS_MAX {
            return broken(Rule::HandshakeTooLong);
        }
        self.options += 1;
        if option != option::EXPORT_NAME && !self.fixed_newstyle {
            return broken(Rule::NeedsFixedNewstyle);
        }
        if option == option::EXPORT_NAME && length > NAME_BYTES_MAX {
            return broken(Rule::BadExportName);
        }
        self.bytes_left = bytes_left;
        self.stage = if length > OPTION_BYTES_MAX {
            Stage::Skip { option, left_bytes: length }
        } else {
            Stage::Data { option, length_bytes: length }
        };
        None
    }

    /// Answers one whole option.
    fn option(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>, admit: Admit<'_>) -> Progress {
        if self.needs_tls(option) {
            if option == option::EXPORT_NAME {
                return Progress::Close { broken: Some(Rule::TlsRequired) };
            }
            return refuse(option, TLS_REQUIRED, out);
        }
        let answer = match option {
            option::STARTTLS if self.tls == Tls::On => Err((option_reply::ERR_INVALID, Rule::TlsAlready)),
            option::STARTTLS if self.tls != Tls::Off => match no_data(data) {
                Ok(()) => {
                    put_option_reply(out, option, option_reply::ACK, &[]);
                    return Progress::StartTls;
                }
                Err(refusal) => Err(refusal),
            },
            option::EXPORT_NAME => return self.export_name(data, out, admit),
            option::ABORT => {
                // Data are not allowed here, but are ignored: the client leaves either way.
                put_option_reply(out, option, option_reply::ACK, &[]);
                return Progress::Close { broken: None };
            }
            option::LIST => no_data(data).map(|()| self.listing = Some(self.exports.all().into())),
            option::INFO | option::GO => match self.info(option, data, out, admit) {
                Ok(session) if option == option::GO => return Progress::Transmit(session),
                other => other.map(drop),
            },
            option::STRUCTURED_REPLY if self.extended => {
                no_data(data).and(Err((option_reply::ERR_EXT_HEADER_REQD, Rule::ExtendedAlready)))
            }
            option::EXTENDED_HEADERS | option::STRUCTURED_REPLY => no_data(data).map(|()| {
                (self.structured, self.extended) = (true, option == option::EXTENDED_HEADERS);
                put_option_reply(out, option, option_reply::ACK, &[]);
            }),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.meta_context(option, data, out),
            _ => Err((option_reply::ERR_UNSUP, Rule::OptionUnsupported)),
        };
        match answer {
            Ok(()) => Progress::Answered { refused: None },
            Err(refusal) => refuse(option, refusal, out),
        }
    }

    /// Everything but STARTTLS and ABORT does, until it is there. Source: NBD protocol, "FORCEDTLS mode".
    fn needs_tls(&self, option: u32) -> bool {
        self.tls == Tls::Required && !matches!(option, option::STARTTLS | option::ABORT)
    }

    /// How an option is refused whose data were skipped.
    fn too_big(&self, option: u32) -> Refusal {
        match option {
            _ if self.needs_tls(option) => TLS_REQUIRED,
            option::STARTTLS if self.tls == Tls::On => (option_reply::ERR_INVALID, Rule::TlsAlready),
            option::STARTTLS if self.tls != Tls::Off => (option_reply::ERR_INVALID, Rule::OptionTakesNoData),
            option::INFO | option::GO | option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                (option_reply::ERR_TOO_BIG, Rule::OptionTooBig)
            }
            option::LIST | option::STRUCTURED_REPLY | option::EXTENDED_HEADERS => {
                (option_reply::ERR_INVALID, Rule::OptionTakesNoData)
            }
            _ => (option_reply::ERR_UNSUP, Rule::OptionUnsupported),
        }
    }

    fn export_name(&mut self, data: &[u8], out: &mut Vec<u8>, admit: Admit<'_>) -> Progress {
        if self.extended {
            return Progress::Close { broken: Some(Rule::ExtendedAlready) };
        }
        let export = match self.export(data) {
            Ok(export) => export,
            Err((_, rule)) => return Progress::Close { broken: Some(rule) },
        };
        if !admit(&export) {
            return Progress::Close { broken: Some(Rule::TooManyConnections) };
        }
        let session = self.session(export);
        out.extend(session.export.size_now_bytes().to_be_bytes());
        out.extend(transmission_flags(&session).to_be_bytes());
        if !self.no_zeroes {
            out.extend([0; wire::EXPORT_NAME_ZEROES_BYTES]);
        }
        Progress::Transmit(session)
    }

    /// Answers LIST with the next export that is there for the client, or ends the list.
    fn list_next(&mut self, out: &mut Vec<u8>) {
        let is_there = |export: &Arc<Export>| !export.state.is_closed() && export.state.admits(&self.peer);
        let mut left = self.listing.iter_mut().flat_map(|listing| std::iter::from_fn(|| listing.pop_front()));
        match left.find(is_there) {
            Some(export) => {
                let length = (export.name.len() as u32).to_be_bytes();
                let data: [&[u8]; 3] = [&length, export.name.as_bytes(), export.description.as_bytes()];
                put_option_reply(out, option::LIST, option_reply::SERVER, &data);
            }
            None => {
                self.listing = None;
                put_option_reply(out, option::LIST, option_reply::ACK, &[]);
            }
        }
    }

    fn info(&self, option: u32, data: &[u8], out: &mut Vec<u8>, admit: Admit<'_>) -> Result<Session, Refusal> {
        let mut reader = Reader(data);
        let mut form = || {
            let name = reader.counted()?;
            let count = usize::from(reader.u16()?);
            (reader.0.len() == 2 * count).then_some((name, reader.0))
        };
        let (name, wanted) = form().ok_or(MALFORMED)?;
        let wants = |kind: u16| wanted.chunks_exact(2).any(|item| item == kind.to_be_bytes());
        let session = self.session(self.export(name)?);
        let export = &session.export;
        if option == option::GO && !admit(export) {
            return Err((option_reply::ERR_POLICY, Rule::TooManyConnections));
        }

        let mut put = |kind: u16, data: [&[u8]; 3]| {
            let [first, second, third] = data;
            put_option_reply(out, option, option_reply::INFO, &[&kind.to_be_bytes(), first, second, third]);
        };
        let (size, flags) = (export.size_now_bytes().to_be_bytes(), transmission_flags(&session).to_be_bytes());
        put(info::EXPORT, [&size, &flags, &[]]);
        if wants(info::NAME) {
            put(info::NAME, [export.name.as_bytes(), &[], &[]]);
        }
        if wants(info::DESCRIPTION) && !export.description.is_empty() {
            put(info::DESCRIPTION, [export.description.as_bytes(), &[], &[]]);
        }
        // Told unasked where it matters: a client that goes beyond these sizes gets errors it should understand.
        if wants(info::BLOCK_SIZE) || export.block.narrower_than_default() {
            let block = &export.block;
            let [min, preferred, max] =
                [block.min_bytes, block.preferred_bytes, block.payload_bytes_max].map(u32::to_be_bytes);
            put(info::BLOCK_SIZE, [&min, &preferred, &max]);
        }
        put_option_reply(out, option, option_reply::ACK, &[]);
        Ok(session)
    }

    fn meta_context(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Result<(), Refusal> {
        let choose = option == option::SET_META_CONTEXT;
        if choose {
            // Whatever comes of it, the former choice is gone.
            self.block_status_of = None;
        }
        let mut reader = Reader(data);
        let mut form = || {
            let name = reader.counted()?;
            let count = reader.u32()?;
            let mut matched = count == 0 && !choose;
            for _ in 0..count {
                matched |= match reader.counted()? {
                    b"base:" => !choose,
                    query => query == wire::BASE_ALLOCATION.as_bytes(),
                };
            }
            reader.0.is_empty().then_some((name, matched))
        };
        let (name, matched) = form().ok_or(MALFORMED)?;
        if !self.structured {
            return Err((option_reply::ERR_INVALID, Rule::NeedsStructuredReplies));
        }
        let export = self.export(name)?;
        if matched {
            let id = if choose { wire::BASE_ALLOCATION_ID } else { 0 };
            let data: [&[u8]; 2] = [&id.to_be_bytes(), wire::BASE_ALLOCATION.as_bytes()];
            put_option_reply(out, option, option_reply::META_CONTEXT, &data);
        }
        if matched && choose {
            self.block_status_of = Some(export);
        }
        put_option_reply(out, option, option_reply::ACK, &[]);
        Ok(())
    }

    fn export(&self, name: &[u8]) -> Result<Arc<Export>, Refusal> {
        let bad = (option_reply::ERR_INVALID, Rule::BadExportName);
        let name = std::str::from_utf8(name).map_err(|_| bad)?;
        if name.len() > NAME_BYTES_MAX || name.contains('\0') {
            return Err(bad);
        }
        let export = self.exports.lookup(name).ok_or((option_reply::ERR_UNKNOWN, Rule::UnknownExport))?;
        if !export.state.admits(&self.peer) {
            return Err((option_reply::ERR_UNKNOWN, Rule::ForbiddenExport));
        }
        Ok(export)
    }

    fn session(&self, export: Arc<Export>) -> Session {
        // Not compared by pointer: if the list of exports was replaced, the same export has another address.
        let is_chosen = |chosen: &Arc<Export>| (chosen.id, &chosen.name) == (export.id, &export.name);
        let block_status = self.block_status_of.as_ref().is_some_and(is_chosen);
        Session { export, structured: self.structured, extended: self.extended, block_status }
    }
}

const TLS_REQUIRED: Refusal = (option_reply::ERR_TLS_REQD, Rule::TlsRequired);

const MALFORMED: Refusal = (option_reply::ERR_INVALID, Rule::OptionMalformed);

fn no_data(data: &[u8]) -> Result<(), Refusal> {
    if data.is_empty() { Ok(()) } else { Err((option_reply::ERR_INVALID, Rule::OptionTakesNoData)) }
}

fn refuse(option: u32, (kind, rule): Refusal, out: &mut Vec<u8>) -> Progress {
    put_option_reply(out, option, kind, &[rule.sentence().as_bytes()]);
    Progress::Answered { refused: Some(rule) }
}

/// Flags of the export's abilities, for a client that agreed on this session.
///
/// CAN_MULTI_CONN is true of every export: a flush is a flush of the device, so it covers what was answered on any
/// connection, and a FUA write is stable for all of them.
pub fn transmission_flags(session: &Session) -> u16 {
    use transmission::*;
    let always = HAS_FLAGS | SEND_FLUSH | SEND_FUA | CAN_MULTI_CONN;
    let zeroes = SEND_WRITE_ZEROES | SEND_FAST_ZERO;
    let changes = if session.export.is_read_only() { READ_ONLY } else { SEND_TRIM | zeroes };
    let fragments = if session.structured { SEND_DF } else { 0 };
    always | changes | fragments
}

impl Negotiation {
    /// A state of this version has a place for all of it.
    pub fn can_be_handed_over(&self, version: u16) -> bool {
        (self.listing.is_none() || version >= LISTING_SINCE) && (!self.extended || version >= EXTENDED_SINCE)
    }

    /// Writes what [`Negotiation::unpack`] reads.
    pub fn pack(&self, writer: &mut StateWriter) {
        let (stage, option, bytes) = match self.stage {
            Stage::Flags => (0, 0, 0),
            Stage::Header => (1, 0, 0),
            Stage::Data { option, length_bytes } => (2, option, length_bytes),
            Stage::Skip { option, left_bytes } => (3, option, left_bytes),
            Stage::Over => (4, 0, 0),
        };
        writer.u8(stage);
        writer.u32(option);
        writer.u32(bytes as u32);
        writer.bytes(&self.gathered);
        [self.fixed_newstyle, self.no_zeroes, self.structured].into_iter().for_each(|flag| writer.flag(flag));
        writer.flag(self.block_status_of.is_some());
        writer.bytes(self.block_status_of.as_ref().map_or(&[][..], |export| export.name.as_bytes()));
        writer.u32(self.options);
        writer.u32(self.bytes_left as u32);
        writer.since(LISTING_SINCE, |writer| {
            writer.flag(self.listing.is_some());
            writer.u32(self.listing.as_ref().map_or(0, VecDeque::len) as u32);
            self.listing.iter().flatten().for_each(|export| writer.bytes(export.name.as_bytes()));
        });
        writer.since(EXTENDED_SINCE, |writer| writer.flag(self.extended));
    }

    /// The handshake, about `exports`.
    ///
    /// # Errors
    /// What no handshake can be.
    pub fn unpack(reader: &mut StateReader<'_>, exports: Arc<ExportTable>) -> Result<Negotiation, StateFault> {
        let (stage, option, bytes) = (reader.u8()?, reader.u32()?, reader.u32()? as usize);
        let gathered = reader.bytes()?;
        let (stage, gathered_max) = match stage {
            0 => (Stage::Flags, wire::CLIENT_FLAGS_BYTES),
            1 => (Stage::Header, wire::OPTION_HEADER_BYTES),
            2 if bytes <= OPTION_BYTES_MAX => (Stage::Data { option, length_bytes: bytes }, bytes.max(1)),
            3 if bytes <= HANDSHAKE_BYTES_MAX => (Stage::Skip { option, left_bytes: bytes }, 1),
            4 => (Stage::Over, 1),
            _ => return Err(StateFault("has a handshake at no stage")),
        };
        demand(gathered.len() < gathered_max, "has more of a message than the message has")?;
        let [fixed_newstyle, no_zeroes, structured] = [reader.flag()?, reader.flag()?, reader.flag()?];
        let (has_chosen, chosen) = (reader.flag()?, reader.text()?);
        // A missing export has no block status.
        let block_status_of = if has_chosen { exports.lookup(chosen) } else { None };
        let block_status_of = block_status_of.filter(|export| export.name == chosen);
        let (options, bytes_left) = (reader.u32()?, reader.u32()? as usize);
        let is_short = options <= OPTIONS_MAX && bytes_left <= HANDSHAKE_BYTES_MAX;
        demand(is_short, "has a handshake longer than there can be")?;
        let mut listing = None;
        if reader.version() >= LISTING_SINCE {
            let is_listing = reader.flag()?;
            let mut left = VecDeque::new();
            for _ in 0..reader.u32()? {
                let name = reader.text()?;
                left.extend(exports.lookup(name).filter(|export| export.name == name));
            }
            demand(is_listing || left.is_empty(), "has exports of a list that there is not")?;
            listing = is_listing.then_some(left);
        }
        let extended = reader.version() >= EXTENDED_SINCE && reader.flag()?;
        demand(structured || !extended, "has extended headers without structured replies")?;
        let gathered = gathered.to_vec();
        let of = Negotiation::new(exports);
        Ok(Negotiation {
            stage,
            gathered,
            fixed_newstyle,
            no_zeroes,
            structured,
            extended,
            block_status_of,
            options,
            bytes_left,
            listing,
            ..of
        })
    }
}

#[cfg(test)]
#[path = "negotiate_tests.rs"]
mod tests;
