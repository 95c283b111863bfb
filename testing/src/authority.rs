//! An authority of certificates, which signs into folders as libnbd and QEMU want them.

use crate::Folder;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use rcgen::{CertificateRevocationListParams, KeyIdMethod, RevokedCertParams, SerialNumber};
use std::fs;
use std::path::{Path, PathBuf};

/// Serial number of the certificate of this name.
fn serial(name: &str) -> SerialNumber {
    SerialNumber::from(name.bytes().map(u64::from).sum::<u64>())
}

/// Certificate and key of an authority.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// A new one.
    ///
    /// # Panics
    /// If something cannot be signed or written, as everything here.
    #[allow(clippy::new_without_default, reason = "an authority is no default of anything")]
    pub fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, "authority");
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// `FILE-cert.pem` and `FILE-key.pem` of `name` in `folder`, and the authority's own certificate, `ca-cert.pem`.
    pub fn sign(&self, folder: &Path, file: &str, name: &str) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.serial_number = Some(serial(name));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        for (what, text) in [("cert", certificate.pem()), ("key", key.serialize_pem())] {
            fs::write(folder.join(format!("{file}-{what}.pem")), text).unwrap();
        }
        fs::write(folder.join("ca-cert.pem"), self.0.pem()).unwrap();
    }

    /// The list of those that it has revoked, in `file`.
    pub fn revoke(&self, file: &Path, names: &[&str]) {
        let when = rcgen::date_time_ymd(2024, 1, 1);
        let one = |name: &&str| RevokedCertParams {
            serial_number: serial(name),
            revocation_time: when,
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: when,
            next_update: rcgen::date_time_ymd(4000, 1, 1),
            crl_number: SerialNumber::from(1u64),
            issuing_distribution_point: None,
            revoked_certs: names.iter().map(one).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        fs::write(file, params.signed_by(&self.0).unwrap().pem().unwrap()).unwrap();
    }

    /// A folder of its own for a client that is called `NAME.example`.
    pub fn client(&self, folder: &Folder, name: &str) -> PathBuf {
        let path = folder.join(name);
        fs::create_dir(&path).unwrap();
        self.sign(&path, "client", &format!("{name}.example"));
        path
    }
}
