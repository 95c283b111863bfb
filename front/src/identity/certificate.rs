//! Which names are in this certificate? Read from its DER, of which the verifier has checked the signature before.
//!
//! ```text
//! Certificate ─▶ TBSCertificate: [0] serial algorithm issuer validity subject key [1] [2] [3] ─▶ extensions
//!                                                             │                         └─▶ subject alternative name
//!                                                             └─▶ common names
//! ```
//! Sources: RFC 5280, 4.1 (certificate) and 4.2.1.6 (alternative names); X.690, 8.1 and 10.1 (lengths of DER).
//!
//! Invariants: no byte of the input can make it panic, loop or take memory beyond the names; what is not understood is
//! no name.

use super::{Identity, Kind};

/// Most names that are looked at, of all kinds together: a certificate that is meant for clients has a few.
const NAMES_MAX: usize = 64;

mod tag {
    pub const INTEGER: u8 = 0x02;
    pub const OBJECT: u8 = 0x06;
    pub const OCTETS: u8 = 0x04;
    pub const UTF8: u8 = 0x0c;
    pub const PRINTABLE: u8 = 0x13;
    pub const IA5: u8 = 0x16;
    pub const SEQUENCE: u8 = 0x30;
    pub const SET: u8 = 0x31;
    /// `[0]` of a TBSCertificate.
    pub const VERSION: u8 = 0xa0;
    /// `[3]` of it.
    pub const EXTENSIONS: u8 = 0xa3;
    /// `[1]`, `[2]` and `[6]` of a GeneralName.
    pub const EMAIL: u8 = 0x81;
    pub const DNS: u8 = 0x82;
    pub const URI: u8 = 0x86;
}

/// 2.5.4.3
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

/// 1.2.840.113549.1.1.1
const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];

/// 2.5.29.17
const ALTERNATIVE_NAMES: &[u8] = &[0x55, 0x1d, 0x11];

/// The alternative names and common names of a certificate, in its order, at most 64 of them.
pub fn names(certificate: &[u8]) -> Vec<Identity> {
    let mut names = Vec::new();
    // Names found before the first unreadable field count.
    let _ = collect(certificate, &mut names);
    names.truncate(NAMES_MAX);
    names
}

/// Bits of the modulus of a private RSA key in DER, with the frame of PKCS#8 or without. `None`: another key. Sources:
/// RFC 5958, 2; RFC 8017, A.1.2.
pub(crate) fn rsa_bits(key: &[u8]) -> Option<usize> {
    let mut fields = Der(Der(key).next_of(tag::SEQUENCE)?);
    fields.next_of(tag::INTEGER)?;
    let modulus = match fields.next()? {
        (tag::INTEGER, modulus) => modulus,
        (tag::SEQUENCE, algorithm) if Der(algorithm).next_of(tag::OBJECT) == Some(RSA) => {
            return rsa_bits(fields.next_of(tag::OCTETS)?);
        }
        _ => return None,
    };
    let first = modulus.iter().position(|byte| *byte != 0)?;
    Some((modulus.len() - first) * 8 - modulus[first].leading_zeros() as usize)
}

fn collect(certificate: &[u8], names: &mut Vec<Identity>) -> Option<()> {
    let mut whole = Der(certificate);
    let mut fields = Der(Der(whole.next_of(tag::SEQUENCE)?).next_of(tag::SEQUENCE)?);
    fields.skip_if(tag::VERSION);
    // Serial number, algorithm, issuer, validity.
    (0..4).try_for_each(|_| fields.next().map(drop))?;
    let subject = fields.next_of(tag::SEQUENCE)?;
    common_names(subject, names);
    // The key, and identifiers that are unused.
    while let Some((found, value)) = fields.next() {
        if found == tag::EXTENSIONS {
            return extensions(value, names);
        }
    }
    Some(())
}

fn common_names(subject: &[u8], names: &mut Vec<Identity>) {
    let mut sets = Der(subject);
    while let Some(set) = sets.next_of(tag::SET) {
        let mut attributes = Der(set);
        while let Some(attribute) = attributes.next_of(tag::SEQUENCE) {
            let mut attribute = Der(attribute);
            if attribute.next_of(tag::OBJECT) == Some(COMMON_NAME)
                && let Some((tag::UTF8 | tag::PRINTABLE | tag::IA5, value)) = attribute.next()
            {
                add(Kind::CommonName, value, names);
            }
        }
    }
}

fn extensions(value: &[u8], names: &mut Vec<Identity>) -> Option<()> {
    let mut all = Der(Der(value).next_of(tag::SEQUENCE)?);
    while let Some(extension) = all.next_of(tag::SEQUENCE) {
        let mut extension = Der(extension);
        if extension.next_of(tag::OBJECT) != Some(ALTERNATIVE_NAMES) {
            continue;
        }
        // A boolean may say that it is critical.
        let octets = std::iter::from_fn(|| extension.next()).find(|(found, _)| *found == tag::OCTETS)?.1;
        let mut general = Der(Der(octets).next_of(tag::SEQUENCE)?);
        while let Some((found, value)) = general.next() {
            match found {
                tag::DNS => add(Kind::Dns, value, names),
                tag::URI => add(Kind::Uri, value, names),
                tag::EMAIL => add(Kind::Email, value, names),
                _ => {}
            }
        }
    }
    Some(())
}

fn add(kind: Kind, value: &[u8], names: &mut Vec<Identity>) {
    let name = std::str::from_utf8(value).ok().and_then(|name| Identity::new(kind, name));
    names.extend(name.filter(|_| names.len() < NAMES_MAX));
}

/// Values one behind the other.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// The next one's tag and contents. `None`: the end, or none that DER can be.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&[found, first], rest) = self.0.split_first_chunk()?;
        // Tags of several bytes are not among those that a certificate has here.
        let is_simple = found & 0x1f != 0x1f;
        let (length, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            0x81..=0x84 => {
                let (length, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                (length.iter().fold(0, |all, byte| all << 8 | usize::from(*byte)), rest)
            }
            _ => return None,
        };
        let (value, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        is_simple.then_some((found, value))
    }

    /// The next value, if it has this tag.
    fn next_of(&mut self, wanted: u8) -> Option<&'a [u8]> {
        self.next().filter(|(found, _)| *found == wanted).map(|(_, value)| value)
    }

    fn skip_if(&mut self, unwanted: u8) {
        if self.0.first() == Some(&unwanted) {
            let _ = self.next();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rcgen::{CertificateParams, DnType, DnValue, KeyPair, SanType, string::Ia5String};

    fn certificate(common: &str, alternative: Vec<SanType>) -> Vec<u8> {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "cn:no");
        params.distinguished_name.push(DnType::CommonName, DnValue::Utf8String(common.to_owned()));
        params.subject_alt_names = alternative;
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    fn text(text: &str) -> Ia5String {
        text.try_into().unwrap()
    }

    fn shown(certificate: &[u8]) -> Vec<String> {
        names(certificate).iter().map(Identity::to_string).collect()
    }

    #[test]
    fn names_of_each_kind_are_found_and_addresses_are_none() {
        let alternative = vec![
            SanType::DnsName(text("A.example")),
            SanType::URI(text("spiffe://example/a")),
            SanType::Rfc822Name(text("a@example")),
            SanType::IpAddress([127, 0, 0, 1].into()),
        ];
        let found = shown(&certificate("alice", alternative));
        assert_eq!(found, ["cn:alice", "dns:a.example", "uri:spiffe://example/a", "email:a@example"]);
        assert_eq!(shown(&certificate("a\0b", vec![])), Vec::<String>::new(), "a NUL ends names in other programs");
    }

    #[test]
    fn of_many_names_the_first_64_count() {
        let many = (0..100).map(|index| SanType::DnsName(text(&format!("n{index}")))).collect();
        let found = shown(&certificate("first", many));
        assert_eq!((found.len(), found[0].as_str(), found[63].as_str()), (64, "cn:first", "dns:n62"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn no_bytes_do_harm(position in 0usize..400, byte: u8, cut in 0usize..400, junk: Vec<u8>) {
            let mut whole = certificate("alice", vec![SanType::DnsName(text("a.example"))]);
            let at = position % whole.len();
            whole[at] = byte;
            let _ = names(&whole);
            let _ = names(&whole[..cut.min(whole.len())]);
            let _ = names(&junk);
        }
    }
}
