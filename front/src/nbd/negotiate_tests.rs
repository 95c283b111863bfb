use super::*;
use crate::export::BlockSizes;
use crate::memory::TenantMemory;
use mqfq_blk::FlowId;
use mqfq_blk::client::DeviceIndex;
use mqfq_blk::slots::Slot;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

/// Client flags that agree to everything, and to fixed newstyle with zeroes.
const FIXED_NO_ZEROES: &[u8] = &[0, 0, 0, 3];
const FIXED: &[u8] = &[0, 0, 0, 1];

fn export(name: &str, size_bytes: u64) -> Export {
    Export {
        name: name.to_owned(),
        description: String::new(),
        device: DeviceIndex(0),
        flow: FlowId(0),
        id: crate::export::ExportId(Slot::first(u32::from(name == "b"))),
        tenant: crate::export::TenantId(Slot::first(u32::from(name == "b"))),
        state: crate::export::ExportState::default(),
        offset_bytes: 0,
        size_bytes,
        read_only: false,
        block: BlockSizes::DEFAULT,
        memory: TenantMemory::unbounded(),
        caps: mqfq_blk::cap::Caps::none(),
    }
}

/// "a" with 1 MiB and a description, "b" read-only with blocks of 512 and payloads up to 64 KiB, and one that is being
/// drained.
fn table() -> Arc<ExportTable> {
    let block = BlockSizes { min_bytes: 512, preferred_bytes: 4096, payload_bytes_max: 65536, pages_align_bytes: 0 };
    let first = Export { description: "first".to_owned(), ..export("a", MIB) };
    let second = Export { read_only: true, block, ..export("b", 2 * MIB) };
    let gone = export("gone", MIB);
    gone.state.close();
    Arc::new(ExportTable::new([first, second, gone]).unwrap())
}

/// An option as a client sends it.
fn option(number: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT", &number.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
}

/// A reply as the protocol describes it.
fn reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let magic = [0x00, 0x03, 0xe8, 0x89, 0x04, 0x55, 0x65, 0xa9];
    [&magic[..], &option.to_be_bytes(), &kind.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data].concat()
}

fn error(option: u32, kind: u32, rule: Rule) -> Vec<u8> {
    reply(option, kind, rule.sentence().as_bytes())
}

/// A string with its length.
fn counted(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text].concat()
}

/// Data of INFO and GO.
fn wants(name: &str, kinds: &[u16]) -> Vec<u8> {
    let kinds: Vec<u8> = [kinds.len() as u16].iter().chain(kinds).flat_map(|number| number.to_be_bytes()).collect();
    [counted(name.as_bytes()), kinds].concat()
}

/// Data of LIST_META_CONTEXT and SET_META_CONTEXT.
fn queries(name: &str, queries: &[&str]) -> Vec<u8> {
    let count = (queries.len() as u32).to_be_bytes().to_vec();
    let queries = queries.iter().flat_map(|query| counted(query.as_bytes()));
    counted(name.as_bytes()).into_iter().chain(count).chain(queries).collect()
}

/// How a handshake ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// It wants more bytes.
    Waiting,
    Transmit {
        name: String,
        structured: bool,
        block_status: bool,
    },
    Closed(Option<Rule>),
}

#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    answers: Vec<u8>,
    refused: Vec<Rule>,
    /// Bytes not used when it ended.
    left: Vec<u8>,
    end: End,
}

/// Runs a handshake on `input`, cut at `cuts`.
fn run_cut(input: &[u8], cuts: &[usize]) -> Outcome {
    run_admitting(input, cuts, &mut |_| true)
}

/// [`run_cut`], where `admit` says which exports may be had.
fn run_admitting(input: &[u8], cuts: &[usize], admit: Admit<'_>) -> Outcome {
    let mut negotiation = Negotiation::new(table());
    let mut outcome = Outcome { answers: Vec::new(), refused: Vec::new(), left: Vec::new(), end: End::Waiting };
    let mut from = 0;
    for to in cuts.iter().copied().chain([input.len()]) {
        let mut piece = &input[from..to];
        from = to;
        loop {
            let (used, progress) = negotiation.advance(piece, &mut outcome.answers, admit);
            piece = &piece[used..];
            match progress {
                Progress::More => {
                    assert!(piece.is_empty(), "asks for more although bytes are left");
                    break;
                }
                Progress::Answered { refused } => outcome.refused.extend(refused),
                Progress::StartTls => unreachable!("no TLS is offered"),
                Progress::Transmit(Session { export, structured, block_status, .. }) => {
                    outcome.end = End::Transmit { name: export.name.clone(), structured, block_status };
                    outcome.left = [piece, &input[to..]].concat();
                    return outcome;
                }
                Progress::Close { broken } => {
                    outcome.end = End::Closed(broken);
                    outcome.left = [piece, &input[to..]].concat();
                    return outcome;
                }
            }
        }
    }
    outcome
}

fn run(pieces: &[&[u8]]) -> Outcome {
    run_cut(&pieces.concat(), &[])
}

/// Answers to options of a client that agreed to everything.
fn answers(options: &[Vec<u8>]) -> Vec<u8> {
    run(&[FIXED_NO_ZEROES, &options.concat()]).answers
}

fn transmit(name: &str, structured: bool, block_status: bool) -> End {
    End::Transmit { name: name.to_owned(), structured, block_status }
}

#[test]
fn the_greeting_offers_fixed_newstyle_without_zeroes() {
    let mut out = Vec::new();
    Negotiation::greeting(&mut out);
    assert_eq!(out, b"NBDMAGICIHAVEOPT\0\x03");
}

#[test]
fn flags_never_offered_close() {
    assert_eq!(run(&[&[0, 0, 0, 4]]).end, End::Closed(Some(Rule::UnknownClientFlags)));
    assert_eq!(run(&[&[0x80, 0, 0, 3]]).end, End::Closed(Some(Rule::UnknownClientFlags)));
}

#[test]
fn an_option_without_its_magic_closes() {
    let outcome = run(&[FIXED, b"IHAVEOPS", &[0; 8]]);
    assert_eq!((outcome.end, outcome.answers), (End::Closed(Some(Rule::BadOptionMagic)), vec![]));
}

#[test]
fn a_client_without_fixed_newstyle_may_only_name_an_export() {
    let outcome = run(&[&[0; 4], &option(option::LIST, b"")]);
    assert_eq!(outcome.end, End::Closed(Some(Rule::NeedsFixedNewstyle)));
    assert_eq!(run(&[&[0; 4], &option(option::EXPORT_NAME, b"a")]).end, transmit("a", false, false));
}

#[test]
fn export_name_answers_size_flags_and_124_zeroes_unless_refused() {
    // HAS_FLAGS 1 + FLUSH 4 + FUA 8 + TRIM 32 + WRITE_ZEROES 64 + MULTI_CONN 256 + FAST_ZERO 2048 = 0x96d.
    let size_and_flags = b"\0\0\0\0\0\x10\0\0\x09\x6d";
    let outcome = run(&[FIXED_NO_ZEROES, &option(option::EXPORT_NAME, b"a"), b"next"]);
    assert_eq!((&outcome.answers[..], &outcome.left[..]), (&size_and_flags[..], &b"next"[..]));
    let outcome = run(&[FIXED, &option(option::EXPORT_NAME, b"a")]);
    assert_eq!(outcome.answers, [&size_and_flags[..], &[0; 124]].concat());
    assert_eq!(outcome.end, transmit("a", false, false));
}

#[test]
fn export_name_of_nothing_closes_because_it_cannot_be_answered() {
    for (name, rule) in [("c", Rule::UnknownExport), ("", Rule::UnknownExport), ("a\0", Rule::BadExportName)] {
        let outcome = run(&[FIXED, &option(option::EXPORT_NAME, name.as_bytes())]);
        assert_eq!((outcome.end, outcome.answers), (End::Closed(Some(rule)), vec![]));
    }
    for (length, rule) in [(4096, Rule::UnknownExport), (4097, Rule::BadExportName)] {
        let outcome = run(&[FIXED, &option(option::EXPORT_NAME, &vec![b'x'; length])]);
        assert_eq!(outcome.end, End::Closed(Some(rule)), "a name of {length} bytes");
    }
}

#[test]
fn go_answers_the_exports_facts_and_begins() {
    let outcome = run(&[FIXED, &option(option::GO, &wants("a", &[])), b"next"]);
    let facts = reply(option::GO, 3, b"\0\0\0\0\0\0\0\x10\0\0\x09\x6d");
    assert_eq!(outcome.answers, [facts, reply(option::GO, 1, b"")].concat());
    assert_eq!((outcome.end, &outcome.left[..]), (transmit("a", false, false), &b"next"[..]));
}

#[test]
fn go_answers_what_was_asked_for_and_ignores_what_it_does_not_know() {
    let kinds = [info::NAME, 77, info::DESCRIPTION, info::BLOCK_SIZE];
    let expected = [
        reply(option::GO, 3, b"\0\0\0\0\0\0\0\x10\0\0\x09\x6d"),
        reply(option::GO, 3, b"\0\x01a"),
        reply(option::GO, 3, b"\0\x02first"),
        // 1, 4096, 32 MiB.
        reply(option::GO, 3, b"\0\x03\0\0\0\x01\0\0\x10\0\x02\0\0\0"),
        reply(option::GO, 1, b""),
    ];
    assert_eq!(answers(&[option(option::GO, &wants("a", &kinds))]), expected.concat());
    for (kind, fact) in [(info::NAME, 1), (info::DESCRIPTION, 2), (info::BLOCK_SIZE, 3)] {
        let alone = [&expected[0][..], &expected[fact], &expected[4]].concat();
        assert_eq!(answers(&[option(option::GO, &wants("a", &[kind]))]), alone, "one fact alone");
    }
}

#[test]
fn nothing_is_heard_after_the_end_of_a_handshake() {
    for last in [option(option::GO, &wants("a", &[])), option(option::ABORT, b""), vec![0; 16]] {
        let mut negotiation = Negotiation::new(table());
        let mut out = Vec::new();
        negotiation.advance(FIXED, &mut out, &mut |_| true);
        negotiation.advance(&last, &mut out, &mut |_| true);
        let said = out.len();
        let (used, progress) = negotiation.advance(&option(option::LIST, b""), &mut out, &mut |_| true);
        assert!(matches!(progress, Progress::Close { broken: None }), "{progress:?}");
        assert_eq!((used, out.len(), negotiation.between_messages()), (0, said, true));
    }
}

#[test]
fn sizes_narrower_than_the_default_are_told_unasked() {
    // HAS_FLAGS 1 + READ_ONLY 2 + FLUSH 4 + FUA 8 + MULTI_CONN 256 = 0x10f, no TRIM and no WRITE_ZEROES.
    let expected = [
        reply(option::INFO, 3, b"\0\0\0\0\0\0\0\x20\0\0\x01\x0f"),
        reply(option::INFO, 3, b"\0\x03\0\0\x02\0\0\0\x10\0\0\x01\0\0"),
        reply(option::INFO, 1, b""),
    ];
    assert_eq!(answers(&[option(option::INFO, &wants("b", &[]))]), expected.concat());
}

#[test]
fn info_describes_and_the_handshake_goes_on() {
    let both = [option(option::INFO, &wants("a", &[])), option(option::GO, &wants("b", &[]))];
    assert_eq!(run(&[FIXED, &both.concat()]).end, transmit("b", false, false));
}

#[test]
fn go_to_an_unknown_export_is_answered_and_the_client_may_try_again() {
    let unknown = error(option::GO, option_reply::ERR_UNKNOWN, Rule::UnknownExport);
    let twice = [option(option::GO, &wants("c", &[])), option(option::GO, &wants("a", &[]))];
    let outcome = run(&[FIXED, &twice.concat()]);
    assert!(outcome.answers.starts_with(&unknown));
    assert_eq!((outcome.end, outcome.refused), (transmit("a", false, false), vec![Rule::UnknownExport]));
    // Two exports to choose from, so the empty name means neither.
    assert_eq!(answers(&[option(option::GO, &wants("", &[]))]), unknown);
}

#[test]
fn go_with_data_of_another_form_is_invalid() {
    let whole = wants("a", &[info::NAME]);
    for length in 0..whole.len() {
        assert_eq!(
            answers(&[option(option::GO, &whole[..length])]),
            error(option::GO, option_reply::ERR_INVALID, Rule::OptionMalformed)
        );
    }
    let longer = [&whole[..], &[0]].concat();
    let expected = error(option::GO, option_reply::ERR_INVALID, Rule::OptionMalformed);
    assert_eq!(answers(&[option(option::GO, &longer)]), expected);
    let beyond = [&u32::MAX.to_be_bytes()[..], b"a", &[0, 0]].concat();
    assert_eq!(answers(&[option(option::GO, &beyond)]), expected, "a name longer than the option");
}

#[test]
fn a_name_that_is_no_string_is_invalid() {
    let expected = error(option::INFO, option_reply::ERR_INVALID, Rule::BadExportName);
    for name in [&b"\xff"[..], b"a\0", &[b'x'; 4097]] {
        assert_eq!(answers(&[option(option::INFO, &[counted(name), vec![0, 0]].concat())]), expected);
    }
    let longest = option(option::INFO, &[counted(&[b'x'; 4096]), vec![0, 0]].concat());
    assert_eq!(answers(&[longest]), error(option::INFO, option_reply::ERR_UNKNOWN, Rule::UnknownExport));
}

#[test]
fn list_names_every_export_that_takes_clients_with_its_description() {
    let expected = [
        reply(option::LIST, 2, b"\0\0\0\x01afirst"),
        reply(option::LIST, 2, b"\0\0\0\x01b"),
        reply(option::LIST, 1, b""),
    ];
    assert_eq!(answers(&[option(option::LIST, b"")]), expected.concat());
}

#[test]
fn options_without_data_refuse_data() {
    for number in [option::LIST, option::STRUCTURED_REPLY, option::EXTENDED_HEADERS] {
        let expected = error(number, option_reply::ERR_INVALID, Rule::OptionTakesNoData);
        assert_eq!(answers(&[option(number, b"x")]), expected);
    }
}

#[test]
fn structured_replies_bring_the_dont_fragment_flag() {
    let both = [option(option::STRUCTURED_REPLY, b""), option(option::GO, &wants("a", &[]))];
    let outcome = run(&[FIXED, &both.concat()]);
    let expected = [
        reply(option::STRUCTURED_REPLY, 1, b""),
        // 0x96d + DF 128.
        reply(option::GO, 3, b"\0\0\0\0\0\0\0\x10\0\0\x09\xed"),
        reply(option::GO, 1, b""),
    ];
    assert_eq!((outcome.answers, outcome.end), (expected.concat(), transmit("a", true, false)));
}

#[test]
fn extended_headers_take_the_place_of_structured_replies_and_need_go() {
    let [structured, extended] = [option::STRUCTURED_REPLY, option::EXTENDED_HEADERS].map(|number| option(number, b""));
    let go = option(option::GO, &wants("a", &[]));
    let outcome = run(&[FIXED, &structured, &extended, &structured, &go]);
    let expected = [
        reply(option::STRUCTURED_REPLY, 1, b""),
        reply(option::EXTENDED_HEADERS, 1, b""),
        error(option::STRUCTURED_REPLY, option_reply::ERR_EXT_HEADER_REQD, Rule::ExtendedAlready),
        reply(option::GO, 3, b"\0\0\0\0\0\0\0\x10\0\0\x09\xed"),
        reply(option::GO, 1, b""),
    ];
    assert_eq!((outcome.answers, outcome.end), (expected.concat(), transmit("a", true, false)));
    let outcome = run(&[FIXED, &extended, &option(option::EXPORT_NAME, b"a")]);
    assert_eq!(outcome.end, End::Closed(Some(Rule::ExtendedAlready)));
}

#[test]
fn abort_is_acknowledged_and_closes_whatever_it_carries() {
    for data in [&b""[..], b"bye"] {
        let outcome = run(&[FIXED, &option(option::ABORT, data), b"more"]);
        assert_eq!((outcome.end, outcome.answers), (End::Closed(None), reply(option::ABORT, 1, b"")));
    }
}

#[test]
fn options_we_do_not_speak_are_refused_and_the_next_is_understood() {
    let unspoken = [option::STARTTLS, 12, 4, 0, 99, u32::MAX];
    for number in unspoken {
        for data in [&b""[..], b"data of an option from the future"] {
            let outcome = run(&[FIXED, &option(number, data), &option(option::ABORT, b"")]);
            let expected =
                [error(number, option_reply::ERR_UNSUP, Rule::OptionUnsupported), reply(option::ABORT, 1, b"")];
            assert_eq!((outcome.answers, outcome.refused), (expected.concat(), vec![Rule::OptionUnsupported]));
        }
    }
}

#[test]
fn an_option_too_big_is_skipped_and_the_next_is_understood() {
    let longest = option(option::GO, &vec![0; OPTION_BYTES_MAX]);
    assert_eq!(run(&[FIXED, &longest]).refused, [Rule::OptionMalformed], "kept, and looked at");
    let data = vec![0; OPTION_BYTES_MAX + 1];
    for (number, kind, rule) in [
        (option::GO, option_reply::ERR_TOO_BIG, Rule::OptionTooBig),
        (option::SET_META_CONTEXT, option_reply::ERR_TOO_BIG, Rule::OptionTooBig),
        (option::LIST, option_reply::ERR_INVALID, Rule::OptionTakesNoData),
        (99, option_reply::ERR_UNSUP, Rule::OptionUnsupported),
    ] {
        let outcome = run(&[FIXED, &option(number, &data), &option(option::ABORT, b"")]);
        assert_eq!(outcome.answers, [error(number, kind, rule), reply(option::ABORT, 1, b"")].concat());
        assert_eq!((outcome.end, outcome.refused), (End::Closed(None), vec![rule]));
    }
}

#[test]
fn a_handshake_too_long_closes() {
    // Announced, not sent: nothing is waited for.
    let header = [&b"IHAVEOPT"[..], &option::GO.to_be_bytes(), &u32::MAX.to_be_bytes()].concat();
    let outcome = run(&[FIXED, &header]);
    assert_eq!((outcome.end, outcome.answers), (End::Closed(Some(Rule::HandshakeTooLong)), vec![]));

    let many = option(99, b"").repeat(OPTIONS_MAX as usize);
    assert_eq!(run(&[FIXED, &many]).end, End::Waiting);
    assert_eq!(run(&[FIXED, &many, &option(99, b"")]).end, End::Closed(Some(Rule::HandshakeTooLong)));

    // 16 + 16 Ki bytes each: 63 of them fit 1 MiB, 64 do not.
    let large = option(99, &vec![0; OPTION_BYTES_MAX]);
    assert_eq!(run(&[FIXED, &large.repeat(63)]).end, End::Waiting);
    assert_eq!(run(&[FIXED, &large.repeat(64)]).end, End::Closed(Some(Rule::HandshakeTooLong)));
}

#[test]
fn meta_contexts_need_structured_replies() {
    for number in [option::LIST_META_CONTEXT, option::SET_META_CONTEXT] {
        let expected = error(number, option_reply::ERR_INVALID, Rule::NeedsStructuredReplies);
        assert_eq!(answers(&[option(number, &queries("a", &["base:allocation"]))]), expected);
    }
}

/// Answers to one option after structured replies were agreed on.
fn structured_answers(number: u32, data: &[u8]) -> Vec<u8> {
    let acknowledged = reply(option::STRUCTURED_REPLY, 1, b"");
    let both = answers(&[option(option::STRUCTURED_REPLY, b""), option(number, data)]);
    both.strip_prefix(&acknowledged[..]).unwrap().to_vec()
}

#[test]
fn listing_meta_contexts_finds_ours_by_name_by_wildcard_and_by_default() {
    let number = option::LIST_META_CONTEXT;
    let ours = [reply(number, 4, b"\0\0\0\0base:allocation"), reply(number, 1, b"")].concat();
    let none = reply(number, 1, b"");
    let listed = |asked: &[&str]| structured_answers(number, &queries("a", asked));
    assert_eq!(listed(&[]), ours);
    assert_eq!(listed(&["base:"]), ours);
    assert_eq!(listed(&["base:allocation", "base:"]), ours, "once, however often asked for");
    assert_eq!(listed(&["qemu:dirty-bitmap:x", "base:allocation"]), ours);
    for unknown in ["base:other", "qemu:", "", "base", "Base:allocation"] {
        assert_eq!(listed(&[unknown]), none, "{unknown:?}");
    }
}

#[test]
fn choosing_meta_contexts_takes_exact_names_only() {
    let number = option::SET_META_CONTEXT;
    let none = reply(number, 1, b"");
    let chosen = |asked: &[&str]| structured_answers(number, &queries("a", asked));
    let ours = [reply(number, 4, b"\0\0\0\x01base:allocation"), none.clone()].concat();
    assert_eq!(chosen(&["base:allocation"]), ours);
    assert_eq!(chosen(&["x-other:y", "base:allocation", "base:allocation"]), ours);
    for asked in [&[][..], &["base:"], &["base:alloc"]] {
        assert_eq!(chosen(asked), none, "{asked:?}");
    }
}

#[test]
fn the_last_choice_of_meta_contexts_counts_and_only_for_its_export() {
    let structured = option(option::STRUCTURED_REPLY, b"");
    let set = |name: &str, asked: &[&str]| option(option::SET_META_CONTEXT, &queries(name, asked));
    let go = |name: &str| option(option::GO, &wants(name, &[]));
    let end = |options: &[Vec<u8>]| run(&[FIXED, &structured, &options.concat()]).end;
    assert_eq!(end(&[set("a", &["base:allocation"]), go("a")]), transmit("a", true, true));
    assert_eq!(end(&[set("a", &["base:allocation"]), go("b")]), transmit("b", true, false));
    assert_eq!(end(&[set("a", &["base:allocation"]), set("a", &[]), go("a")]), transmit("a", true, false));
    // A failed choice undoes the former one too.
    assert_eq!(
        end(&[set("a", &["base:allocation"]), set("c", &["base:allocation"]), go("a")]),
        transmit("a", true, false)
    );
    let malformed = option(option::SET_META_CONTEXT, b"");
    assert_eq!(end(&[set("a", &["base:allocation"]), malformed, go("a")]), transmit("a", true, false));
    let named = option(option::EXPORT_NAME, b"a");
    assert_eq!(end(&[set("a", &["base:allocation"]), named]), transmit("a", true, true));
}

#[test]
fn meta_context_queries_of_another_form_are_invalid() {
    for number in [option::LIST_META_CONTEXT, option::SET_META_CONTEXT] {
        let expected = error(number, option_reply::ERR_INVALID, Rule::OptionMalformed);
        let whole = queries("a", &["base:allocation"]);
        for length in 0..whole.len() {
            assert_eq!(structured_answers(number, &whole[..length]), expected);
        }
        assert_eq!(structured_answers(number, &[&whole[..], &[0]].concat()), expected);
        let promised = [counted(b"a"), u32::MAX.to_be_bytes().to_vec()].concat();
        assert_eq!(structured_answers(number, &promised), expected, "four billion queries, none there");
        let unknown = error(number, option_reply::ERR_UNKNOWN, Rule::UnknownExport);
        assert_eq!(structured_answers(number, &queries("c", &["base:allocation"])), unknown);
    }
}

/// Every path above, one after the other.
fn long_conversation() -> Vec<u8> {
    [
        FIXED.to_vec(),
        option(option::STRUCTURED_REPLY, b""),
        option(option::EXTENDED_HEADERS, b"xyz"),
        option(option::LIST, b""),
        option(option::LIST_META_CONTEXT, &queries("a", &["base:"])),
        option(option::SET_META_CONTEXT, &queries("a", &["base:allocation"])),
        option(option::INFO, &wants("b", &[info::NAME, info::BLOCK_SIZE])),
        option(option::GO, &wants("c", &[])),
        option(option::GO, &vec![0; OPTION_BYTES_MAX + 1]),
        option(option::GO, &wants("a", &[info::DESCRIPTION])),
        b"requests".to_vec(),
    ]
    .concat()
}

#[test]
fn cutting_the_bytes_anywhere_changes_nothing() {
    let input = long_conversation();
    let whole = run_cut(&input, &[]);
    assert_eq!((&whole.end, &whole.left[..]), (&transmit("a", true, true), &b"requests"[..]));
    // In the last kilobyte every cut, and before it every cut of the first options.
    for cut in (0..400).chain(input.len() - 200..input.len()) {
        assert_eq!(run_cut(&input, &[cut]), whole, "cut at {cut}");
    }
    let every_byte: Vec<usize> = (1..input.len()).collect();
    assert_eq!(run_cut(&input, &every_byte), whole);
}

proptest! {
    #[test]
    fn any_cuts_give_the_same_answers(mut cuts in prop::collection::vec(0..17_000_usize, 0..40)) {
        let input = long_conversation();
        cuts.retain(|cut| *cut <= input.len());
        cuts.sort_unstable();
        prop_assert_eq!(run_cut(&input, &cuts), run_cut(&input, &[]));
    }

    #[test]
    fn garbage_never_panics_and_is_cut_alike(
        options in prop::collection::vec((0..14_u32, prop::collection::vec(any::<u8>(), 0..60)), 0..8),
        garbage in prop::collection::vec(any::<u8>(), 0..60),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut input = FIXED.to_vec();
        options.iter().for_each(|(number, data)| input.extend(option(*number, data)));
        input.extend(garbage);
        let cut = cut.index(input.len() + 1);
        prop_assert_eq!(run_cut(&input, &[cut]), run_cut(&input, &[]));
    }
}

#[test]
fn an_export_that_may_not_be_had_is_refused_and_the_next_one_is_not() {
    // "a" may have no more connections. An INFO about it is not a choice.
    let mut asked = Vec::new();
    let mut admit = |export: &Export| {
        asked.push(export.name.clone());
        export.name != "a"
    };
    let input = [
        FIXED_NO_ZEROES.to_vec(),
        option(option::GO, &wants("a", &[info::NAME])),
        option(option::INFO, &wants("a", &[])),
        option(option::GO, &wants("nothing", &[])),
        option(option::GO, &wants("b", &[])),
    ];
    let outcome = run_admitting(&input.concat(), &[], &mut admit);
    assert_eq!(outcome.end, transmit("b", false, false));
    assert_eq!(outcome.refused, [Rule::TooManyConnections, Rule::UnknownExport]);
    // 2^31 + 2 is ERR_POLICY; nothing of the export is told before it.
    assert!(outcome.answers.starts_with(&error(option::GO, (1 << 31) + 2, Rule::TooManyConnections)));
    assert_eq!(asked, ["a", "b"]);
}

#[test]
fn export_name_of_an_export_that_may_not_be_had_closes() {
    let input = [FIXED_NO_ZEROES, &option(option::EXPORT_NAME, b"a")].concat();
    let outcome = run_admitting(&input, &[], &mut |_| false);
    assert_eq!((outcome.end, outcome.answers), (End::Closed(Some(Rule::TooManyConnections)), Vec::new()));
}

#[test]
fn a_client_may_leave_between_messages_and_not_within_one() {
    let mut negotiation = Negotiation::new(table());
    let mut out = Vec::new();
    assert!(negotiation.between_messages(), "before its flags");
    let message = option(option::LIST, &[]);
    let mut say = |bytes: &[u8]| {
        let mut bytes = bytes;
        loop {
            let (used, progress) = negotiation.advance(bytes, &mut out, &mut |_| true);
            bytes = &bytes[used..];
            if matches!(progress, Progress::More | Progress::Close { .. }) {
                return negotiation.between_messages();
            }
        }
    };
    assert!(!say(&FIXED_NO_ZEROES[..2]));
    assert!(say(&FIXED_NO_ZEROES[2..]));
    assert!(!say(&message[..3]));
    assert!(say(&message[3..]));
    // The data of an option, too.
    let go = option(option::INFO, &wants("a", &[]));
    assert!(!say(&go[..go.len() - 1]));
    assert!(say(&go[go.len() - 1..]));
}

#[test]
fn starttls_is_answered_by_what_the_address_has_and_takes_no_data_however_long() {
    let invalid = option_reply::ERR_INVALID;
    let (no_data, required) = (Rule::OptionTakesNoData, Rule::TlsRequired);
    for (tls, kind, rule) in [
        (Tls::Off, option_reply::ERR_UNSUP, Rule::OptionUnsupported),
        (Tls::Offered, invalid, no_data),
        (Tls::Required, invalid, no_data),
        (Tls::On, invalid, Rule::TlsAlready),
    ] {
        // Beside it, an option of each kind while TLS is demanded.
        let other = match tls {
            Tls::Required => error(option::LIST, option_reply::ERR_TLS_REQD, required),
            _ => error(option::LIST, invalid, no_data),
        };
        for length in [1, OPTION_BYTES_MAX, OPTION_BYTES_MAX + 1] {
            let mut negotiation = Negotiation::new(table()).with(tls, Peer::default());
            let data = vec![0; length];
            let input = [FIXED, &option(option::STARTTLS, &data), &option(option::LIST, &data)].concat();
            let (mut from, mut out) = (0, Vec::new());
            while from < input.len() {
                let (used, progress) = negotiation.advance(&input[from..], &mut out, &mut |_| true);
                assert!(matches!(progress, Progress::Answered { .. }) && used > 0, "{progress:?}");
                from += used;
            }
            assert_eq!(out, [error(option::STARTTLS, kind, rule), other.clone()].concat(), "{tls:?}, {length} bytes");
        }
    }
}
