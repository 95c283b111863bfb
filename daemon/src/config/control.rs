//! `[control]`: addresses of the control plane, and its access.

use super::model::{Located, socket_mode};
use super::trust::{self, CERTIFICATE, CLIENT_CA, CLIENT_CRL, KEY};
use mqfq_config::text::quoted;
use mqfq_config::{ConfigError, Section};
use mqfq_front::front_end::AddressFault;
use mqfq_front::socket::{ADDRESSES, SocketAddress};
use mqfq_front::tls::Files;
use std::path::PathBuf;

/// The address unless another one is set.
pub const DEFAULT_ADDRESS: &str = "unix:/run/mqfq/control.sock";

/// `[control]`. Without the section there is no listener: with a default path, two servers on one machine would meet
/// there, and a server that was started by hand may have no right to make it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ControlConfig {
    /// `listen`: an address or a list of these. Default: [`DEFAULT_ADDRESS`].
    pub listen: Vec<SocketAddress>,
    /// `socket-mode`: permissions of unix sockets, octal digits in a string. Default "600".
    pub socket_mode: u32,
    /// `token-file`: what clients of TCP must know, in a file. Default: none, and then no TCP without `client-ca`.
    pub token_file: Option<Located<PathBuf>>,
    /// `certificate`, `key`, `client-ca`, `client-crl`: TLS of TCP. Default: none.
    pub tls: Option<Located<Files>>,
    /// `save`: when changes go to the config file. Default: on request.
    pub save: Save,
}

/// When changes go to the config file.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Save {
    /// `"on-request"`: `mqfq ctl save` and `--save` write them.
    #[default]
    OnRequest,
    /// `"always"`: the server writes each.
    Always,
}

impl Save {
    const ALL: [Save; 2] = [Save::OnRequest, Save::Always];

    /// Name in the config.
    pub const fn name(self) -> &'static str {
        match self {
            Save::OnRequest => "on-request",
            Save::Always => "always",
        }
    }
}

impl ControlConfig {
    /// Equal values, wherever in a document they stand.
    pub fn says(&self, other: &ControlConfig) -> bool {
        fn value<T>(located: &Option<Located<T>>) -> Option<&T> {
            located.as_ref().map(|located| &located.value)
        }
        let ControlConfig { listen, socket_mode, token_file, tls, save } = self;
        (listen, socket_mode, save) == (&other.listen, &other.socket_mode, &other.save)
            && (value(token_file), value(tls)) == (value(&other.token_file), value(&other.tls))
    }
}

/// Keys of the section.
const KEYS: [&str; 8] = ["listen", "socket-mode", "token-file", CERTIFICATE, KEY, CLIENT_CA, CLIENT_CRL, "save"];

const ALLOWED: &str = "\"unix:PATH\" (at most 107 bytes), \"tcp:HOST:PORT\", or a list of these";

/// The section, if it is there.
///
/// # Errors
/// An unknown key, an address that cannot be read or is listed twice, TCP without a token and without certificates of
/// clients, or TLS without TCP.
pub(super) fn read(root: &Section<'_, '_>) -> Result<Option<ControlConfig>, ConfigError> {
    let Some(section) = root.get("control") else { return Ok(None) };
    let section = section.table(&KEYS)?;
    let token_file = section.get("token-file").map(|entry| {
        let text = entry.text("the path of a file")?;
        Ok(Located { value: PathBuf::from(text), place: entry.place() })
    });
    let token_file = token_file.transpose()?;
    let has_tls = [CERTIFICATE, KEY, CLIENT_CA, CLIENT_CRL].iter().any(|key| section.get(key).is_some());
    let tls = has_tls.then(|| trust::tls(&section)).transpose()?;
    let knows_clients = token_file.is_some() || tls.as_ref().is_some_and(|tls| tls.value.client_ca.is_some());
    let (texts, place) = match section.get("listen") {
        Some(entry) => (entry.texts(ALLOWED)?, entry.place()),
        None => (vec![DEFAULT_ADDRESS.to_owned()], section.place().inside("listen")),
    };
    let mut listen: Vec<SocketAddress> = Vec::new();
    for text in texts {
        let address = SocketAddress::parse(&text).map_err(|fault| {
            let text = quoted(&text);
            place.error(match fault {
                AddressFault::Unreadable(why) => format!("{text} is not an address to listen on: {why}"),
                AddressFault::Refused(why) => format!("{text} {why}, allowed is {ADDRESSES}"),
            })
        })?;
        if listen.contains(&address) {
            return Err(place.error(format!("{address} is listed twice, allowed is once")));
        }
        if matches!(address, SocketAddress::Tcp { .. }) && !knows_clients {
            let message = "everybody on the network or on this machine could change everything, allowed is tcp with \
                           token-file, tcp with certificate, key and client-ca, or unix:PATH";
            return Err(place.error(format!("{address}: {message}")));
        }
        listen.push(address);
    }
    let socket_mode = section.get("socket-mode").map(|entry| socket_mode(&entry)).transpose()?;
    if let Some(tls) = tls.as_ref().filter(|_| !listen.iter().any(|at| matches!(at, SocketAddress::Tcp { .. }))) {
        let message = "a certificate is for tcp, allowed is one with tcp:HOST:PORT in listen";
        return Err(tls.place.inside(CERTIFICATE).error(message));
    }
    let save = section.get("save").map(|entry| {
        let name = entry.choice(&Save::ALL.map(Save::name))?;
        Ok(Save::ALL.into_iter().find(|save| save.name() == name).expect("a choice of all names"))
    });
    let save = save.transpose()?;
    let (socket_mode, save) = (socket_mode.unwrap_or(0o600), save.unwrap_or_default());
    Ok(Some(ControlConfig { listen, socket_mode, token_file, tls, save }))
}

#[cfg(test)]
mod tests {
    use super::super::Config;

    fn read(text: &str) -> Result<String, String> {
        let config = Config::parse("c.toml", text).map_err(|error| error.to_string())?;
        let control = config.control.ok_or("none")?;
        let addresses: Vec<String> = control.listen.iter().map(|address| address.to_string()).collect();
        Ok(format!("{} {:o}", addresses.join(" "), control.socket_mode))
    }

    #[test]
    fn without_the_section_nobody_listens_and_with_it_at_one_place_by_default() {
        assert_eq!(read(""), Err("none".into()));
        assert_eq!(read("[control]"), Ok("unix:/run/mqfq/control.sock 600".into()));
        let two = "[control]\nlisten = [\"unix:/a\", \"tcp:127.0.0.1:80\"]\nsocket-mode = \"660\"\ntoken-file = \"/t\"";
        assert_eq!(read(two), Ok("unix:/a tcp:127.0.0.1:80 660".into()));
        let certified = "[control]\nlisten = \"tcp:h:80\"\ncertificate = \"/c\"\nkey = \"/k\"\nclient-ca = \"/a\"";
        assert_eq!(read(certified), Ok("tcp:h:80 600".into()));
    }

    #[test]
    fn what_does_not_go_is_refused_in_a_sentence() {
        let why = "everybody on the network or on this machine could change everything, allowed is tcp with \
                   token-file, tcp with certificate, key and client-ca, or unix:PATH";
        for (text, sentence) in [
            ("listen = \"tcp:[::1]:80\"", format!("c.toml:2: control.listen: tcp:[::1]:80: {why}")),
            (
                "listen = [\"unix:/a\", \"unix:/a\"]",
                "c.toml:2: control.listen: unix:/a is listed twice, allowed is once".into(),
            ),
            (
                "listen = \"/a\"",
                "c.toml:2: control.listen: \"/a\" is not an address to listen on: expected unix:PATH or tcp:HOST:PORT"
                    .into(),
            ),
            (
                "socket-mode = \"999\"",
                "c.toml:2: control.socket-mode: \"999\" is no mode, allowed is \"0\" to \"777\" in octal digits".into(),
            ),
            (
                "listen = \"tcp:[::1]:80\"\ncertificate = \"/c\"\nkey = \"/k\"",
                format!("c.toml:2: control.listen: tcp:[::1]:80: {why}"),
            ),
            (
                "client-ca = \"/a\"",
                "c.toml:1: control.certificate: this key is missing, allowed is the path of a file in PEM form".into(),
            ),
            (
                "certificate = \"/c\"\nkey = \"/k\"",
                "c.toml:1: control.certificate: a certificate is for tcp, allowed is one with tcp:HOST:PORT in listen"
                    .into(),
            ),
            (
                "port = 1",
                "c.toml:2: control.port: unknown key, allowed are listen, socket-mode, token-file, certificate, key, \
                 client-ca, client-crl, save"
                    .into(),
            ),
        ] {
            assert_eq!(read(&format!("[control]\n{text}\n")), Err(sentence));
        }
    }
}
