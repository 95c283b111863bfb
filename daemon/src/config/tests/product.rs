//! The program that ships refuses the laboratory's policies and keys.

use super::*;

#[test]
fn the_product_names_its_own_kinds_of_device_and_says_where_the_other_is() {
    let kind =
        |name: &str| Config::parse("c.toml", &format!("[device.fast]\nkind = \"{name}\"\n")).unwrap_err().to_string();
    assert_eq!(
        kind("nvme"),
        "c.toml:2: device.fast.kind: \"nvme\" is a kind of the laboratory: cargo lab serve, allowed here are \
         null, memory, file, pool, model, of which model is a modelled drive"
    );
    assert_eq!(
        kind("ram"),
        "c.toml:2: device.fast.kind: \"ram\" is not known, allowed are null, memory, file, pool, model"
    );
}

#[test]
fn the_product_names_its_own_policies_and_says_where_the_others_are() {
    let known: &'static Known = Box::leak(Box::new(Known::new(Additions::policies(mqfq_blk::Registry::PRODUCT))));
    let refused = |keys: &str| {
        let text = format!("[device.fast]\nkind = \"null\"\nsize = \"1MiB\"\n{keys}");
        Config::parse_with(known, "c.toml", &text).err().map(|error| error.to_string())
    };
    for kind in mqfq_policies::ALL {
        let sentence = (!["none", "mqfq"].contains(&kind.name())).then(|| {
            format!(
                "c.toml:4: device.fast.policy: \"{kind}\" is a policy of the laboratory: cargo lab serve, allowed here are \
                 none, mqfq"
            )
        });
        assert_eq!(refused(&format!("policy = \"{kind}\"")), sentence);
    }
    let sentence = "c.toml:4: device.fast.policy: \"cfq\" is not known, allowed are none, mqfq";
    assert_eq!(refused("policy = \"cfq\"").as_deref(), Some(sentence));
    for key in mqfq_policies::REGISTRY.all_keys() {
        let why = refused(&format!("{key} = 1")).unwrap_or_default();
        assert!(
            why.starts_with(&format!("c.toml:4: device.fast.{key}: unknown key, allowed are kind, size, ")),
            "{why}"
        );
    }
}

#[test]
fn a_key_that_stands_elsewhere_is_refused_with_its_place() {
    let known: &'static Known = Box::leak(Box::new(Known::new(Additions::policies(mqfq_blk::Registry::PRODUCT))));
    let refused = |name: &str, keys: &str| {
        let text = format!("[device.{name}]\nkind = \"null\"\nsize = \"1MiB\"\n{keys} = 1");
        Config::parse_with(known, "c.toml", &text).unwrap_err().to_string()
    };
    for key in other::LABORATORY_KEYS {
        for key in [key.to_owned(), format!("expert.{key}")] {
            let sentence = format!("c.toml:4: device.fast.{key}: is a key of cargo lab serve alone");
            assert_eq!(refused("fast", &key), sentence);
        }
    }
    for key in ["depth", "window", "split", "queue-depth", "retries", "direct", "slowed"] {
        let sentence = format!("c.toml:4: device.fast.{key}: now stands in [device.fast.expert]");
        assert_eq!(refused("fast", key), sentence);
    }
    let quoted = "c.toml:4: device.\"a b\".depth: now stands in [device.\"a b\".expert]";
    assert_eq!(refused("\"a b\"", "depth"), quoted);
}

#[test]
fn a_key_of_the_server_that_the_laboratory_has_is_refused_with_its_place() {
    for key in other::LABORATORY_SERVER_KEYS {
        let refused = Config::parse("c.toml", &format!("[server]\n{key} = 1\n")).unwrap_err().to_string();
        assert_eq!(refused, format!("c.toml:2: server.{key}: is a key of cargo lab serve alone"));
    }
}

/// Few keys: the server finds the rest by itself.
#[test]
fn a_device_has_eleven_keys_and_seven_for_experts() {
    let known = Known::new(Additions::policies(mqfq_blk::Registry::PRODUCT));
    let count = |keys: &[Vec<&'static str>]| {
        let keys: std::collections::BTreeSet<_> = keys.concat().into_iter().filter(|key| *key != "expert").collect();
        keys.len()
    };
    assert_eq!((count(&known.device_keys), count(&known.expert_keys)), (11, 7));
}
