//! Addresses of exports: a key of `[export.NAME]` for each front end of the registry.

use super::model::{Config, ExportConfig, Located, PrivilegeConfig};
use mqfq_config::text::quoted;
use mqfq_config::{ConfigError, Entry, Section};
use mqfq_front::FRONT_ENDS;
use mqfq_front::front_end::{AddressFault, ExportAddress, FrontEnd, Manner};
use std::collections::{BTreeMap, BTreeSet};

/// The values of a front end's key, for an error's "allowed is".
fn allowed(front_end: &dyn FrontEnd) -> String {
    format!("{}, or a list of these", front_end.addresses())
}

/// All addresses of an export, in the order of the registry.
///
/// # Errors
/// There is none, or one cannot be read or is listed twice.
pub(super) fn read(section: &Section<'_, '_>) -> Result<Vec<Located<ExportAddress>>, ConfigError> {
    let mut addresses = Vec::new();
    for &front_end in FRONT_ENDS {
        let manners = front_end.manners();
        if let Some(entry) = section.get(front_end.name()) {
            let value_of = |manner: &Manner| {
                let value = section.get(manner.key).map(|value| value.choice(manner.values)).transpose()?;
                Ok(value.unwrap_or_else(|| manner.values[0].to_owned()))
            };
            let values = manners.iter().map(value_of).collect::<Result<Vec<String>, ConfigError>>()?;
            read_list(front_end, &entry, &values, &mut addresses)?;
        } else if let Some((manner, value)) = manners.iter().find_map(|manner| Some((manner, section.get(manner.key)?)))
        {
            let without =
                format!("is for {} alone, which this export has not, allowed is no {}", front_end.name(), manner.key);
            return Err(value.place().error(without));
        }
    }
    if addresses.is_empty() {
        let names: Vec<&str> = FRONT_ENDS.iter().map(|front_end| front_end.name()).collect();
        let message = format!("no address says where it is served, allowed is at least one of {}", names.join(", "));
        return Err(section.place().error(message));
    }
    Ok(addresses)
}

/// The addresses as texts: one, or a list of at least one. A number is the text of its digits, where numbers are taken.
fn texts(front_end: &dyn FrontEnd, entry: &Entry<'_, '_>) -> Result<Vec<String>, ConfigError> {
    let items = entry.items_or_one();
    if !front_end.takes_numbers() || items.is_empty() {
        return entry.texts(&allowed(front_end));
    }
    let text = |item: &Entry<'_, '_>| {
        let number = || item.number(0..=u32::MAX).map(|number| number.to_string());
        item.text(&allowed(front_end)).or_else(|error| number().map_err(|_| error))
    };
    items.iter().map(text).collect()
}

fn read_list(
    front_end: &'static dyn FrontEnd,
    entry: &Entry<'_, '_>,
    values: &[String],
    addresses: &mut Vec<Located<ExportAddress>>,
) -> Result<(), ConfigError> {
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    let mut listed = BTreeSet::new();
    for text in texts(front_end, entry)? {
        let address = ExportAddress::parse_with(front_end, &text, &values).map_err(|fault| {
            let text = quoted(&text);
            entry.place().error(match fault {
                AddressFault::Unreadable(why) => format!("{text} is not an address to listen on: {why}"),
                AddressFault::Refused(why) => format!("{text} {why}, allowed is {}", allowed(front_end)),
            })
        })?;
        if !listed.insert(address.to_string()) {
            return Err(entry.place().error(format!("{address} is listed twice, allowed is once")));
        }
        addresses.push(Located { value: address, place: entry.place() });
    }
    Ok(())
}

/// Refuses addresses that collide. Source: [`ExportAddress::collides_with`]. `own` are those of the server itself, each
/// with its key.
///
/// # Errors
/// The first address in the file that collides with one before it, or with one of `own`.
pub(super) fn refuse_collisions(exports: &[ExportConfig], own: &BTreeMap<String, &str>) -> Result<(), ConfigError> {
    // Addresses that collide share a claim or a text, so both are looked up.
    let mut taken: BTreeMap<String, (&ExportAddress, &str)> = BTreeMap::new();
    for export in exports {
        for Located { value: address, place } in &export.addresses {
            if let Some(key) = address.address().claim().and_then(|claim| own.get(&claim)) {
                return Err(place.error(format!("{address} is taken by {key}, allowed is another address")));
            }
            for resource in address.resources() {
                let (other, name) = *taken.entry(resource).or_insert((address, &export.name));
                if !std::ptr::eq(other, address) && address.collides_with(other) {
                    let front_end = other.front_end().name();
                    let whose = mqfq_config::join("export", name);
                    return Err(place
                        .error(format!("{address} is taken by {front_end} of {whose}, allowed is another address")));
                }
            }
        }
    }
    Ok(())
}

/// The server's own addresses, of the control plane and for upgrades: by the claim of each, with its key.
///
/// # Errors
/// Both are to be at one address.
pub(super) fn own(config: &Config) -> Result<BTreeMap<String, &'static str>, ConfigError> {
    let control = config.control.iter().flat_map(|control| &control.listen);
    let control = control.filter_map(|address| Some((address.claim()?, "control.listen")));
    let mut own: BTreeMap<_, _> = control.collect();
    if let Some(address) = &config.server.upgrade
        && let Some(claim) = address.claim()
        && let Some(key) = own.insert(claim, "server.upgrade")
    {
        let place = config.place.inside("server").inside("upgrade");
        return Err(place.error(format!("{address} is taken by {key}, allowed is another address")));
    }
    Ok(own)
}

/// A server that becomes another user has no address that only root can have.
///
/// # Errors
/// The first such address.
pub(super) fn refuse_without_root(exports: &[ExportConfig], privilege: &PrivilegeConfig) -> Result<(), ConfigError> {
    if privilege.user.as_deref().is_none_or(|user| ["root", "0"].contains(&user)) {
        return Ok(());
    }
    let mut all = exports.iter().flat_map(|export| &export.addresses);
    all.find(|address| address.value.address().needs_root()).map_or(Ok(()), |address| {
        let front_end = address.value.front_end().name();
        Err(address.place.error(format!(
            "{front_end} needs root (CAP_SYS_ADMIN) as long as it serves, which server.user gives up, allowed is one of the \
             two"
        )))
    })
}

#[cfg(test)]
mod tests {
    use super::super::RealFiles;
    use super::*;
    use mqfq_front::export::ExportTable;
    use mqfq_front::front_end::{Address, ListenOptions, Listener};
    use std::sync::Arc;

    /// Another front end, whose addresses are paths of sockets that offer one export each.
    struct Other;

    #[derive(Debug)]
    struct Path(String);

    impl FrontEnd for Other {
        fn name(&self) -> &'static str {
            "other"
        }

        fn addresses(&self) -> &'static str {
            "\"PATH\""
        }

        fn parse(&self, text: &str) -> Result<Arc<dyn Address>, AddressFault> {
            Ok(Arc::new(Path(text.to_owned())))
        }
    }

    impl std::fmt::Display for Path {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(&self.0)
        }
    }

    impl Address for Path {
        fn claim(&self) -> Option<String> {
            Some(format!("unix:{}", self.0))
        }

        fn takes_several_exports(&self) -> bool {
            false
        }

        fn could_listen(&self) -> Result<(), String> {
            Ok(())
        }

        fn listen(&self, _: Arc<ExportTable>, _: &ListenOptions) -> Result<Box<dyn Listener>, String> {
            unreachable!("nobody listens")
        }
    }

    #[test]
    fn addresses_of_two_front_ends_collide_on_one_socket_and_some_take_one_export_alone() {
        let text = "[device.d]\nkind = \"null\"\nsize = \"1MiB\"\n[tenant.t]\n\
                    [export.a]\ndevice = \"d\"\ntenant = \"t\"\nnbd = [\"unix:/a\", \"unix:/b\"]\n\
                    [export.b]\ndevice = \"d\"\ntenant = \"t\"\nnbd = \"unix:/a\"\n";
        let refused = |added: [(usize, &str); 2]| {
            let mut exports = Config::parse("c.toml", text).unwrap().exports;
            for (export, path) in added {
                let place = exports[export].addresses[0].place.clone();
                let value = ExportAddress::parse(&Other, path).unwrap();
                exports[export].addresses.push(Located { value, place });
            }
            refuse_collisions(&exports, &BTreeMap::new()).map_err(|error| error.to_string())
        };
        assert_eq!(refused([(0, "/c"), (1, "/d")]), Ok(()));
        let taken = "is taken by nbd of export.a, allowed is another address";
        assert_eq!(refused([(0, "/c"), (1, "/b")]), Err(format!("c.toml:12: export.b.nbd: /b {taken}")));
        let taken = "is taken by other of export.a, allowed is another address";
        assert_eq!(refused([(0, "/c"), (1, "/c")]), Err(format!("c.toml:12: export.b.nbd: /c {taken}")));
    }

    #[test]
    fn an_export_is_not_where_the_server_itself_listens() {
        let check = |own: &str, nbd: &str| {
            let text = format!(
                "{own}\n[device.d]\nkind = \"null\"\nsize = \"1MiB\"\n[tenant.t]\n\
                 [export.a]\ndevice = \"d\"\ntenant = \"t\"\nnbd = {nbd}\n"
            );
            let config = Config::parse("c.toml", &text).unwrap();
            config.check(&RealFiles).map(drop).map_err(|error| error.to_string())
        };
        let control = "[control]\nlisten = [\"unix:/c\", \"unix:/d\"]";
        let upgrade = "[server]\nupgrade = \"unix:/c\"";
        assert_eq!(check(control, "\"unix:/a\""), Ok(()));
        let taken = |at: &str, by: &str| Err(format!("c.toml:{at} is taken by {by}, allowed is another address"));
        assert_eq!(check(control, "[\"unix:/a\", \"unix:/d\"]"), taken("10: export.a.nbd: unix:/d", "control.listen"));
        assert_eq!(check(upgrade, "\"unix:/c\""), taken("10: export.a.nbd: unix:/c", "server.upgrade"));
        let both = format!("{upgrade}\n{control}");
        assert_eq!(check(&both, "\"unix:/a\""), taken("1: server.upgrade: unix:/c", "control.listen"));
        let tcp = "[control]\nlisten = \"tcp:127.0.0.1:80\"\ntoken-file = \"/t\"";
        assert_eq!(check(tcp, "\"tcp:127.0.0.1:80\""), taken("11: export.a.nbd: tcp:127.0.0.1:80", "control.listen"));
    }

    #[test]
    fn a_block_device_and_a_user_who_is_not_root_refuse_each_other() {
        let check = |user: &str, address: &str| {
            let text = format!(
                "[server]\n{user}\n[device.d]\nkind = \"null\"\nsize = \"1MiB\"\n[tenant.t]\n\
                 [export.a]\ndevice = \"d\"\ntenant = \"t\"\n{address}\n"
            );
            let config = Config::parse("c.toml", &text).unwrap();
            config.check(&RealFiles).map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(check("", "ublk = 7"), Ok(()));
        assert_eq!(check("user = \"root\"", "ublk = 7"), Ok(()));
        assert_eq!(check("user = \"nobody\"", "nbd = \"unix:/a\""), Ok(()));
        let refused = "c.toml:10: export.a.ublk: ublk needs root (CAP_SYS_ADMIN) as long as it serves, which server.user \
                       gives up, allowed is one of the two";
        assert_eq!(check("user = \"nobody\"", "ublk = 7"), Err(refused.to_owned()));
    }

    #[test]
    fn a_block_device_is_a_number_and_may_outlive_its_server() {
        let parse = |keys: &str| {
            let text = format!(
                "[device.d]\nkind = \"null\"\nsize = \"1MiB\"\n[tenant.t]\n\
                 [export.a]\ndevice = \"d\"\ntenant = \"t\"\n{keys}\n"
            );
            let config = Config::parse("c.toml", &text).map_err(|error| error.to_string())?;
            let addresses = config.exports[0].addresses.iter();
            Ok::<_, String>(addresses.map(|address| address.value.to_string()).collect::<Vec<_>>())
        };
        let addresses = |keys| parse(keys).unwrap();
        assert_eq!(addresses("ublk = 7"), ["ublk 7"]);
        assert_eq!(addresses("ublk = [\"7\", 8]"), ["ublk 7", "ublk 8"]);
        assert_eq!(addresses("ublk = \"auto\""), ["ublk auto"]);
        assert_eq!(addresses("ublk = 0\nrecovery = \"fail\""), ["ublk 0 (recovery fail)"]);
        assert_eq!(addresses("ublk = 0\nzero-copy = \"on\""), ["ublk 0 (zero-copy on)"]);
        let allowed = "allowed is a number from 0 to 1048575 (of /dev/ublkbN), \"auto\", or a list of these";
        let unknown = "is not known, allowed are none, reissue, fail";
        for (keys, refused) in [
            ("ublk = -1", format!("8: export.a.ublk: an integer does not fit here, {allowed}")),
            ("ublk = []", format!("8: export.a.ublk: this list does not fit here, {allowed}")),
            ("ublk = \"sda\"", format!("8: export.a.ublk: \"sda\" is no number of a ublk device, {allowed}")),
            ("ublk = 0\nrecovery = \"later\"", format!("9: export.a.recovery: \"later\" {unknown}")),
            (
                "recovery = \"fail\"\nnbd = \"unix:/a\"",
                "8: export.a.recovery: is for ublk alone, which this export has not, allowed is no recovery".to_owned(),
            ),
        ] {
            assert_eq!(parse(keys).unwrap_err(), format!("c.toml:{refused}"));
        }
    }
}
