//! Certificate, key and authorities of a server, which change while it runs; and whether an address demands TLS.
//!
//! ```text
//! four files ─▶ Material::read ─▶ Keys::replace ─▶ the next STARTTLS; sessions that there are keep what they have
//! ```
//! rustls does the cryptography, by ring. TLS 1.2 and 1.3. Of what it could do, the following is off:
//!
//! | off | why |
//! |---|---|
//! | session tickets, session caches | a ticket outlives the certificate that was good when it was given |
//! | early data | a request could be played to us again |
//! | renegotiation | rustls has none |
//! | pre-shared keys | rustls has none to give out by hand (its issue 174) |
//!
//! With lists of revoked certificates each certificate of a client's chain but the authority's own must be in the scope
//! of one, so that a list that was forgotten keeps clients out and does not let them in. A list counts until another
//! takes its place: the operator decides how old it may be. Source: RFC 5280, sections 5 and 6.3.

use crate::identity::rsa_bits;
use crate::identity::{Identity, names};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zeroize::Zeroizing;

/// Sizes of RSA keys that ring signs with.
const RSA_BITS: [usize; 3] = [2048, 3072, 4096];

/// Longest file, bytes: some thousand certificates.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Paths of the material, in PEM form.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Files {
    /// The server's certificate, and those between it and its authority.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Authorities of clients. With them each client must have a certificate of one of them; without, no client has a
    /// name.
    pub client_ca: Option<PathBuf>,
    /// Their lists of certificates that they have revoked (CRL). Only with authorities.
    pub client_crl: Option<PathBuf>,
}

/// Content of the files, checked.
#[derive(Clone)]
pub struct Material {
    config: Arc<ServerConfig>,
    /// Differs if the files do. Not secret: of the key there is but its certificate's half in it.
    public: Arc<Vec<Vec<u8>>>,
}

impl fmt::Debug for Material {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Material({} certificates)", self.public.len())
    }
}

impl PartialEq for Material {
    fn eq(&self, other: &Material) -> bool {
        self.public == other.public
    }
}

/// Fault of one of the files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The file's key in the config.
    pub key: &'static str,
    /// The rest of a sentence that begins with the file.
    pub why: String,
}

impl Material {
    /// Reads and checks the files.
    ///
    /// # Errors
    /// The first that cannot be read, holds nothing of its kind, or does not fit the others.
    pub fn read(files: &Files) -> Result<Material, Fault> {
        let authorities = files.client_ca.as_deref().map(|path| read("client-ca", path)).transpose()?;
        let revoked = files.client_crl.as_deref().map(|path| read("client-crl", path)).transpose()?;
        let [authorities, revoked] = [&authorities, &revoked].map(|text| text.as_ref().map(|text| &text[..]));
        Material::from_pem(&read("certificate", &files.certificate)?, &read("key", &files.key)?, authorities, revoked)
    }

    /// Checks what was in the files: certificate, key, authorities of clients, and certificates that they have revoked.
    ///
    /// # Errors
    /// As [`Material::read`].
    pub fn from_pem(
        certificate: &[u8],
        key: &[u8],
        client_ca: Option<&[u8]>,
        client_crl: Option<&[u8]>,
    ) -> Result<Material, Fault> {
        let fault = |key, why: &str| Fault { key, why: why.to_owned() };
        let chain = certificates("certificate", certificate)?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|_| fault("key", "holds no private key in PEM form, allowed are PKCS#8, PKCS#1 and SEC1"))?;
        let authorities = client_ca.map(|text| certificates("client-ca", text)).transpose()?;
        let mut public: Vec<Vec<u8>> = chain.iter().map(|one| one.to_vec()).collect();
        public.push(Vec::new());
        public.extend(authorities.iter().flatten().map(|one| one.to_vec()));
        let revoked = client_crl.map(revocation_lists).transpose()?.unwrap_or_default();
        public.push(Vec::new());
        public.extend(revoked.iter().map(|one| one.to_vec()));

        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| fault("certificate", &error.to_string()))?;
        let builder = match authorities {
            None => builder.with_no_client_auth(),
            Some(authorities) => {
                let mut roots = RootCertStore::empty();
                for one in authorities {
                    roots.add(one).map_err(|error| {
                        fault("client-ca", &format!("holds a certificate that is no authority's: {error}"))
                    })?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).with_crls(revoked);
                let verifier = verifier.build().map_err(|error| match error {
                    VerifierBuilderError::InvalidCrl(why) => fault(
                        "client-crl",
                        &format!("holds a list of revoked certificates that cannot be used: {why:?}"),
                    ),
                    other => fault("client-ca", &other.to_string()),
                })?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        check_key(&key, &provider)?;
        let mut config = builder.with_single_cert(chain, key).map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => fault("key", "is not the key of the certificate"),
            other => fault("certificate", &format!("cannot be used: {other}")),
        })?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.max_early_data_size = 0;
        Ok(Material { config: Arc::new(config), public: Arc::new(public) })
    }
}

/// Names the fault of a key that cannot sign. ring wants an RSA key's primes of a multiple of 512 bits.
fn check_key(key: &PrivateKeyDer<'_>, provider: &CryptoProvider) -> Result<(), Fault> {
    let Err(error) = provider.key_provider.load_private_key(key.clone_key()) else { return Ok(()) };
    let why = match rsa_bits(key.secret_der()) {
        Some(bits) if !RSA_BITS.contains(&bits) => {
            let [small, middle, large] = RSA_BITS;
            format!(
                "is an RSA key of {bits} bits, allowed are {small}, {middle} and {large}, or an ECDSA or Ed25519 key"
            )
        }
        _ => format!("cannot be used: {error}"),
    };
    Err(Fault { key: "key", why })
}

fn read(key: &'static str, path: &Path) -> Result<Zeroizing<Vec<u8>>, Fault> {
    use std::io::Read;
    let failed = |error: std::io::Error| Fault { key, why: format!("cannot be read: {error}") };
    let file = std::fs::File::open(path).map_err(failed)?;
    let length_bytes = file.metadata().map_err(failed)?.len();
    if length_bytes > FILE_BYTES_MAX {
        return Err(Fault { key, why: format!("has {length_bytes} bytes, allowed are {FILE_BYTES_MAX}") });
    }
    // With its room from the start, so that no copy of a key is left where a shorter vector was.
    let mut text = Zeroizing::new(Vec::with_capacity(FILE_BYTES_MAX.min(length_bytes) as usize + 1));
    file.take(FILE_BYTES_MAX).read_to_end(&mut text).map_err(failed)?;
    Ok(text)
}

fn certificates(key: &'static str, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, Fault> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        _ => Err(Fault { key, why: "holds no certificate in PEM form".to_owned() }),
    }
}

fn revocation_lists(text: &[u8]) -> Result<Vec<CertificateRevocationListDer<'static>>, Fault> {
    let all: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(text).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        _ => Err(Fault { key: "client-crl", why: "holds no list of revoked certificates in PEM form".to_owned() }),
    }
}

/// The material in force, for all listeners of a server.
pub struct Keys(Mutex<Material>);

impl Keys {
    /// Keys with `material` in force.
    pub fn new(material: &Material) -> Arc<Keys> {
        Arc::new(Keys(Mutex::new(material.clone())))
    }

    /// From now on handshakes begin with `material`.
    pub fn replace(&self, material: &Material) {
        *self.lock() = material.clone();
    }

    /// Config that a handshake begins with now.
    pub fn now(&self) -> Arc<ServerConfig> {
        self.lock().config.clone()
    }

    /// True if the certificate is for `host`: one of its DNS names, of which the first label may be `*`.
    pub fn is_for(&self, host: &str) -> bool {
        let names = self.lock().public.first().map(|certificate| names(certificate)).unwrap_or_default();
        let parent = host.split_once('.').map(|(_, parent)| parent);
        names.iter().filter_map(Identity::dns).any(|name| match name.strip_prefix("*.") {
            None => name.eq_ignore_ascii_case(host),
            Some(rest) => parent.is_some_and(|parent| rest.eq_ignore_ascii_case(parent)),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Material> {
        // A handle is whole whatever panicked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys")
    }
}

/// TLS at one address.
#[derive(Clone, Debug)]
pub struct Offer {
    /// Keys in force.
    pub keys: Arc<Keys>,
    /// Clients without TLS are refused.
    pub is_required: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value of DER.
    fn der(tag: u8, value: &[u8]) -> Vec<u8> {
        [&[tag, 0x82][..], &(value.len() as u16).to_be_bytes(), value].concat()
    }

    /// The frame of an RSA key with a modulus of so many bits.
    fn rsa(bits: usize) -> Vec<u8> {
        let mut modulus = vec![0xff; bits.div_ceil(8)];
        modulus[0] >>= (8 - bits % 8) % 8;
        der(0x30, &[der(0x02, &[0]), der(0x02, &[vec![0], modulus].concat())].concat())
    }

    #[test]
    fn a_key_of_a_size_that_cannot_sign_is_named_with_the_sizes_that_can() {
        let provider = rustls::crypto::ring::default_provider();
        let algorithm = der(0x30, &der(0x06, &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01]));
        for bits in [1024, 2047, 2432, 8192] {
            let framed = der(0x30, &[der(0x02, &[0]), algorithm.clone(), der(0x04, &rsa(bits))].concat());
            for key in [PrivateKeyDer::Pkcs1(rsa(bits).into()), PrivateKeyDer::Pkcs8(framed.into())] {
                let Fault { key, why } = check_key(&key, &provider).unwrap_err();
                let expected = format!(
                    "is an RSA key of {bits} bits, allowed are 2048, 3072 and 4096, or an ECDSA or Ed25519 key"
                );
                assert_eq!((key, why), ("key", expected));
            }
        }
        let fault = check_key(&PrivateKeyDer::Sec1(vec![0x30, 0].into()), &provider).unwrap_err();
        assert!(fault.key == "key" && fault.why.starts_with("cannot be used: "), "{fault:?}");
    }
}
