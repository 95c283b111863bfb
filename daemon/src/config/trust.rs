//! `[tls]`, `[address."ADDRESS"]`, and access to exports: where is TLS used, and which client may have which export?
//!
//! # Rules
//! | of an address | TLS unless set | refused |
//! |---|---|---|
//! | unix | off | |
//! | TCP on loopback | required, with a section `[tls]`; else off | |
//! | TCP elsewhere | the same | clients in the clear without `insecure = true` |
//!
//! An address is on loopback by its text (127.0.0.0/8, ::1, localhost): no name is looked up.

use super::model::{Config, ExportConfig, Located};
use mqfq_config::text::{quoted, shown};
use mqfq_config::{ConfigError, Entry, Section, SourceLocation};
use mqfq_front::front_end::ExportAddress;
use mqfq_front::identity::{Access, IDENTITIES, Identity};
use mqfq_front::tls::{Fault, Files, Material};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Keys of `[tls]`.
const TLS_KEYS: [&str; 4] = [CERTIFICATE, KEY, CLIENT_CA, CLIENT_CRL];

pub(super) const CERTIFICATE: &str = "certificate";
pub(super) const KEY: &str = "key";
pub(super) const CLIENT_CA: &str = "client-ca";
pub(super) const CLIENT_CRL: &str = "client-crl";

/// Keys of `[address."ADDRESS"]`.
const ADDRESS_KEYS: [&str; 2] = ["tls", "insecure"];

/// Keys of `[export.NAME]` about its clients.
pub(super) const EXPORT_KEYS: [&str; 3] = [IDENTITY, "allow-uids", "allow-gids"];

/// The first key, which `[tenant.NAME]` has as well.
pub(super) const IDENTITY: &str = "identity";

/// `tls` of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TlsMode {
    /// `"off"`: for no client.
    Off,
    /// `"allowed"`: for clients that ask for it.
    Allowed,
    /// `"required"`: for all clients.
    Required,
}

impl TlsMode {
    const ALL: [(&'static str, TlsMode); 3] =
        [("required", TlsMode::Required), ("allowed", TlsMode::Allowed), ("off", TlsMode::Off)];
}

/// The sections `[tls]` and `[address."ADDRESS"]`.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct TrustConfig {
    /// `[tls]`: its files, and where they stand.
    tls: Option<Located<Files>>,
    addresses: BTreeMap<String, AddressConfig>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct AddressConfig {
    place: SourceLocation,
    tls: Option<Located<TlsMode>>,
    /// `insecure`: clients in the clear beyond loopback. Default: false.
    is_insecure: bool,
}

/// A checked [`TrustConfig`], for listeners.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct TrustPlan {
    /// Files of `[tls]`.
    pub files: Option<Files>,
    /// The contents of `files`.
    pub material: Option<Material>,
    /// TLS of each address, by its text.
    pub modes: BTreeMap<String, TlsMode>,
    /// Files of the control plane, and their contents.
    pub control: Option<(Files, Material)>,
}

/// The clients that may have an export, as its own section or its tenant's says.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Clients {
    /// `identity`, `allow-uids`, `allow-gids`.
    pub access: Access,
    /// Place of the first of them.
    pub place: Option<SourceLocation>,
}

pub(super) fn read(root: &Section<'_, '_>) -> Result<TrustConfig, ConfigError> {
    let tls = root.get("tls").map(|section| tls(&section.table(&TLS_KEYS)?)).transpose()?;
    let mut addresses = BTreeMap::new();
    for (name, section) in root.named_tables("address")? {
        let section = section.with_allowed(&ADDRESS_KEYS)?;
        let mode = section.get("tls").map(|entry| {
            let chosen = entry.choice(&TlsMode::ALL.map(|(name, _)| name))?;
            let mode = TlsMode::ALL.iter().find(|(name, _)| *name == chosen).expect("a choice of these").1;
            Ok(Located { value: mode, place: entry.place() })
        });
        let is_insecure = section.get("insecure").map_or(Ok(false), |flag| flag.flag())?;
        addresses.insert(name, AddressConfig { place: section.place().clone(), tls: mode.transpose()?, is_insecure });
    }
    Ok(TrustConfig { tls, addresses })
}

/// Certificate, key, authorities of clients and what they have revoked.
pub(super) fn tls(section: &Section<'_, '_>) -> Result<Located<Files>, ConfigError> {
    const ALLOWED: &str = "the path of a file in PEM form";
    let path = |entry: Entry<'_, '_>| Ok(PathBuf::from(entry.text(ALLOWED)?));
    let files = Files {
        certificate: path(section.require(CERTIFICATE, ALLOWED)?)?,
        key: path(section.require(KEY, ALLOWED)?)?,
        client_ca: section.get(CLIENT_CA).map(path).transpose()?,
        client_crl: section.get(CLIENT_CRL).map(path).transpose()?,
    };
    if files.client_crl.is_some() && files.client_ca.is_none() {
        let why = "nobody's certificates are asked for that could be revoked, allowed is client-crl with client-ca";
        return Err(section.place().inside(CLIENT_CRL).error(why));
    }
    Ok(Located { value: files, place: section.place().clone() })
}

/// `identity`, if it is there.
pub(super) fn identities(section: &Section<'_, '_>) -> Result<Vec<Located<Identity>>, ConfigError> {
    let Some(entry) = section.get(IDENTITY) else { return Ok(Vec::new()) };
    let one = |text: String| {
        let wrong = || entry.place().error(format!("{} is no identity, allowed is {IDENTITIES}", quoted(&text)));
        Ok(Located { value: Identity::parse(&text).ok_or_else(wrong)?, place: entry.place() })
    };
    entry.texts(&format!("{IDENTITIES}, or a list of these"))?.into_iter().map(one).collect()
}

/// The clients that an export's own section allows.
pub(super) fn clients(section: &Section<'_, '_>) -> Result<Clients, ConfigError> {
    let ids = |key| -> Result<Vec<u32>, ConfigError> {
        let Some(entry) = section.get(key) else { return Ok(Vec::new()) };
        let ids =
            entry.items_or_one().iter().map(|item| item.number(0..=u32::MAX - 1)).collect::<Result<Vec<_>, _>>()?;
        if ids.is_empty() {
            return Err(entry.place().error("this list is empty, allowed is a number or a list of numbers"));
        }
        Ok(ids)
    };
    let identities = identities(section)?.into_iter().map(|identity| identity.value).collect();
    let access = Access { identities, uids: ids("allow-uids")?, gids: ids("allow-gids")? };
    let place = EXPORT_KEYS.into_iter().find_map(|key| section.get(key)).map(|entry| entry.place());
    Ok(Clients { access, place })
}

impl TrustConfig {
    /// This config without the sections of addresses that are not `served`.
    pub(super) fn of(&self, served: &dyn Fn(&str) -> bool) -> TrustConfig {
        let addresses = self.addresses.iter().filter(|(text, _)| served(text));
        let addresses = addresses.map(|(text, address)| (text.clone(), address.clone())).collect();
        TrustConfig { tls: self.tls.clone(), addresses }
    }

    /// A section is about this address.
    pub(super) fn is_about(&self, text: &str) -> bool {
        self.addresses.contains_key(text)
    }
}

impl Config {
    /// The clients of each export; its tenant's section counts where its own says nothing of identities.
    ///
    /// # Errors
    /// An address that cannot tell its clients apart, or identities without a CA that vouches for them.
    pub(super) fn clients(&self) -> Result<Vec<Arc<Access>>, ConfigError> {
        let vouches = self.trust.tls.as_ref().is_some_and(|tls| tls.value.client_ca.is_some());
        let named = self.tenants.iter().filter(|tenant| !tenant.identities.is_empty());
        let of_tenants: BTreeMap<&str, &[Located<Identity>]> =
            named.map(|tenant| (&*tenant.name, &*tenant.identities)).collect();
        let of_export = |export: &ExportConfig| {
            let Clients { mut access, mut place } = export.clients.clone();
            if access.identities.is_empty() {
                let identities = of_tenants.get(&*export.tenant.value).copied().unwrap_or_default();
                access.identities = identities.iter().map(|identity| identity.value.clone()).collect();
                place = place.or(identities.first().map(|identity| identity.place.clone()));
            }
            let Some(place) = place else { return Ok(Arc::default()) };
            if !access.identities.is_empty() && !vouches {
                let why = "nobody vouches for identities, allowed is a section [tls] with client-ca";
                return Err(place.error(why));
            }
            match export.addresses.iter().find(|address| !address.value.address().tells_clients_apart()) {
                None => Ok(Arc::new(access)),
                Some(address) => Err(place.error(format!(
                    "clients at {} of {} are not asked who they are, allowed is this export at {} alone",
                    address.value,
                    mqfq_config::join("export", &export.name),
                    mqfq_front::FRONT_ENDS[0].name()
                ))),
            }
        };
        self.exports.iter().map(of_export).collect()
    }

    /// TLS at each address; and a warning for each that is open to the network without it. Without reading its files
    /// the plan has no material.
    ///
    /// # Errors
    /// Unencrypted clients from the network that the config does not allow, TLS without its files, files that do not
    /// fit, a section about an address where nothing is served.
    pub(super) fn trust(&self, reads_files: bool, warnings: &mut Vec<String>) -> Result<TrustPlan, ConfigError> {
        let TrustConfig { tls, addresses } = &self.trust;
        let mut plan = TrustPlan::default();
        for Located { value: address, place } in self.exports.iter().flat_map(|export| &export.addresses) {
            let (text, config) = (address.to_string(), addresses.get(&address.to_string()));
            if plan.modes.contains_key(&text) {
                continue;
            }
            let network = address.address().network();
            let set = config.and_then(|config| config.tls.as_ref());
            let mode = match set {
                Some(set) => set.value,
                None if tls.is_some() && network.is_some() && address.address().can_encrypt() => TlsMode::Required,
                None => TlsMode::Off,
            };
            if let Some(set) = set.filter(|set| set.value != TlsMode::Off) {
                refuse_unable(set, tls.is_some(), address)?;
            }
            if network == Some(true) && mode != TlsMode::Required {
                if !config.is_some_and(|config| config.is_insecure) {
                    let section = format!("[address.{}]", quoted(&text));
                    return Err(place.error(format!(
                        "{text} is open to the network without TLS, allowed is a section {section} with tls = \
                         \"required\" (and a section [tls]), or with insecure = true"
                    )));
                }
                warnings.push(format!(
                    "{text} is open to the network without TLS (insecure = true): whoever is on the way reads and \
                     changes what clients read and write"
                ));
            }
            plan.modes.insert(text, mode);
        }
        if let Some((text, unused)) = addresses.iter().find(|(text, _)| !plan.modes.contains_key(*text)) {
            let served: Vec<String> = plan.modes.keys().map(|text| quoted(text).to_string()).collect();
            let (text, served) = (quoted(text), served.join(", "));
            return Err(unused.place.error(format!("nothing is served at {text}, allowed are {served}")));
        }
        if !reads_files {
            return Ok(plan);
        }
        if let Some(tls) = tls {
            (plan.material, plan.files) = (Some(material(tls)?), Some(tls.value.clone()));
        }
        if let Some(tls) = self.control.as_ref().and_then(|control| control.tls.as_ref()) {
            plan.control = Some((tls.value.clone(), material(tls)?));
        }
        Ok(plan)
    }
}

/// The contents of the files.
fn material(Located { value: files, place }: &Located<Files>) -> Result<Material, ConfigError> {
    Material::read(files).map_err(|Fault { key, why }| {
        let path = match key {
            CERTIFICATE => &files.certificate,
            KEY => &files.key,
            CLIENT_CRL => files.client_crl.as_ref().unwrap_or(&files.certificate),
            _ => files.client_ca.as_ref().unwrap_or(&files.certificate),
        };
        place.inside(key).error(format!("{} {why}", shown(&path.to_string_lossy())))
    })
}

fn refuse_unable(set: &Located<TlsMode>, has_files: bool, address: &ExportAddress) -> Result<(), ConfigError> {
    if !address.address().can_encrypt() {
        return Err(set.place.error(format!("{address} has no TLS, allowed is \"off\"")));
    }
    if !has_files {
        return Err(set.place.error("TLS needs a certificate, allowed is \"off\", or a section [tls]"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{Config, RealFiles};
    use mqfq_front::identity::{Access, Identity};
    use mqfq_testing::Folder;
    use mqfq_testing::authority::Authority;

    const BASE: &str =
        "[device.d]\nkind = \"null\"\nsize = \"1MiB\"\n[tenant.t]\n[export.a]\ndevice = \"d\"\ntenant = \"t\"\n";

    fn check(rest: &str) -> Result<Vec<String>, String> {
        let config = Config::parse("c.toml", &format!("{BASE}{rest}")).map_err(|error| error.to_string())?;
        config.check(&RealFiles).map(|plan| plan.warnings).map_err(|error| error.to_string())
    }

    #[test]
    fn tcp_beyond_loopback_needs_tls_or_a_word_that_it_has_none() {
        for loopback in ["unix:/a", "tcp:127.0.0.1:1", "tcp:127.9.9.9:1", "tcp:[::1]:1", "tcp:localhost:1"] {
            assert_eq!(check(&format!("nbd = {loopback:?}\n")), Ok(vec![]), "{loopback}");
        }
        for open in ["tcp:0.0.0.0:1", "tcp:[::]:1", "tcp:10.0.0.1:1", "tcp:storage.example:1"] {
            let refused = format!(
                "c.toml:8: export.a.nbd: {open} is open to the network without TLS, allowed is a section \
                 [address.\"{open}\"] with tls = \"required\" (and a section [tls]), or with insecure = true"
            );
            assert_eq!(check(&format!("nbd = {open:?}\n")), Err(refused));
            let warned = check(&format!("nbd = {open:?}\n[address.{open:?}]\ninsecure = true\n")).unwrap();
            assert!(warned[0].starts_with(&format!("{open} is open to the network without TLS (")), "{warned:?}");
        }
    }

    /// A section `[tls]` whose files are in `folder`.
    fn tls_in(folder: &Folder) -> String {
        Authority::new().sign(folder.path(), "server", "localhost");
        let path = |name: &str| folder.join(name).display().to_string();
        let [certificate, key, ca] = ["server-cert.pem", "server-key.pem", "ca-cert.pem"].map(path);
        format!("[tls]\ncertificate = {certificate:?}\nkey = {key:?}\nclient-ca = {ca:?}\n")
    }

    #[test]
    fn tls_that_a_client_may_leave_out_is_open_to_the_network_and_tls_that_it_must_use_is_not() {
        let folder = Folder::new();
        let tls = tls_in(&folder);
        let of = |keys: &str| check(&format!("nbd = \"tcp:0.0.0.0:1\"\n[address.\"tcp:0.0.0.0:1\"]\n{keys}{tls}"));
        assert_eq!(of("tls = \"required\"\n"), Ok(vec![]));
        for mode in ["allowed", "off"] {
            let refused = of(&format!("tls = {mode:?}\n")).unwrap_err();
            assert!(refused.contains("tcp:0.0.0.0:1 is open to the network without TLS, allowed is"), "{refused}");
            let warned = of(&format!("tls = {mode:?}\ninsecure = true\n")).unwrap();
            assert!(warned[0].starts_with("tcp:0.0.0.0:1 is open to the network without TLS ("), "{warned:?}");
        }
        assert_eq!(check(&format!("nbd = \"tcp:0.0.0.0:1\"\n{tls}")), Ok(vec![]), "required where there is a [tls]");
    }

    #[test]
    fn an_export_takes_whom_its_section_names_and_the_identities_of_its_tenant_if_that_has_none() {
        let folder = Folder::new();
        let tls = tls_in(&folder);
        let identities = |texts: &[&str]| texts.iter().map(|text| Identity::parse(text).unwrap()).collect();
        let none: &[&str] = &[];
        let [own, of_tenant] = [&["dns:a", "cn:b"], &["uri:c", "email:d@e"]];
        for (keys, names, uids, gids) in [
            ("", &of_tenant[..], vec![], vec![]),
            ("identity = [\"dns:a\", \"cn:b\"]", &own[..], vec![], vec![]),
            ("allow-uids = [1, 2]", &of_tenant[..], vec![1, 2], vec![]),
            ("allow-gids = [3, 4]", &of_tenant[..], vec![], vec![3, 4]),
            ("identity = [\"dns:a\", \"cn:b\"]\nallow-uids = [1, 2]\nallow-gids = [3, 4]", own, vec![1, 2], vec![3, 4]),
        ] {
            for (tenant, names) in [
                ("identity = [\"uri:c\", \"email:d@e\"]", names),
                ("", if keys.starts_with('i') { names } else { none }),
            ] {
                let base = BASE.replace("[tenant.t]", &format!("[tenant.t]\n{tenant}"));
                let text = format!(
                    "{base}nbd = \"unix:/a\"\n{keys}\n[export.b]\ndevice = \"d\"\ntenant = \"t\"\nshared = true\nnbd = \"unix:/a\"\n{tls}"
                );
                let text = text.replacen("tenant = \"t\"\n", "tenant = \"t\"\nshared = true\n", 1);
                let plan = Config::parse("c.toml", &text).and_then(|config| config.check(&RealFiles));
                let plan = plan.unwrap_or_else(|error| panic!("{error}"));
                let clients =
                    |name: &str| (*plan.exports.values().find(|export| export.name == name).unwrap().clients).clone();
                let expected = Access { identities: identities(names), uids: uids.clone(), gids: gids.clone() };
                assert_eq!(clients("a"), expected, "{text}");
                let beside = if tenant.is_empty() { none } else { of_tenant };
                assert_eq!(clients("b"), Access { identities: identities(beside), ..Access::default() }, "{text}");
            }
        }
    }

    #[test]
    fn what_does_not_go_is_refused_in_a_sentence() {
        let unix = "nbd = \"unix:/a\"\n";
        let cases = [
            (
                "[address.\"unix:/b\"]\n",
                "c.toml:9: address.\"unix:/b\": nothing is served at \"unix:/b\", allowed are \"unix:/a\"",
            ),
            (
                "[address.\"unix:/a\"]\ntls = \"required\"\n",
                "c.toml:10: address.\"unix:/a\".tls: TLS needs a certificate, allowed is \"off\", or a section [tls]",
            ),
            (
                "[tls]\ncertificate = \"/no\"\nkey = \"/no\"\n",
                "c.toml:9: tls.certificate: /no cannot be read: No such file or directory",
            ),
            (
                "[tls]\ncertificate = \"/no\"\nkey = \"/no\"\nclient-crl = \"/no\"\n",
                "c.toml:9: tls.client-crl: nobody's certificates are asked for that could be revoked, allowed is \
                 client-crl with client-ca",
            ),
            (
                "identity = \"alice\"\n",
                "c.toml:9: export.a.identity: \"alice\" is no identity, allowed is \"dns:NAME\", \"uri:URI\", \
                 \"email:ADDRESS\", \"cn:NAME\"",
            ),
            (
                "identity = \"cn:alice\"\n",
                "c.toml:9: export.a.identity: nobody vouches for identities, allowed is a section [tls] with client-ca",
            ),
            (
                "vhost-user = \"unix:/b\"\nallow-uids = 7\n",
                "c.toml:10: export.a.allow-uids: clients at unix:/b of export.a are not asked who they are, allowed is \
                 this export at nbd alone",
            ),
            (
                "allow-gids = []\n",
                "c.toml:9: export.a.allow-gids: this list is empty, allowed is a number or a list of numbers",
            ),
        ];
        for (text, sentence) in cases {
            assert_eq!(check(&format!("{unix}{text}")), Err(sentence.to_owned()), "{text}");
        }
    }
}
