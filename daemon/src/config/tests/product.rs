//! The program that ships refuses the laboratory's policies and keys.

use super::*;

#[test]
fn the_product_names_its_own_kinds_of_device_and_says_where_the_other_is() {
    let kind =
        |name: &str| Config::parse("c.toml", &format!("[device.fast]\nkind = \"{name}\"\n")).unwrap_err().to_string();
    assert_eq!(
        kind("nvme"),
        "c.toml:2: device.fast.kind: \"nvme\" is a kind of the laboratory: cargo lab serve, allowed here are \
         null, memory, file, model, of which model is a modelled drive"
    );
    assert_eq!(kind("ram"), "c.toml:2: device.fast.kind: \"ram\" is not known, allowed are null, memory, file, model");
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
    for key in mqfq_policies::REGISTRY.all_keys().into_iter().chain([
        "without-wrr",
        "block-layer",
        "software-queues",
        "async-writes",
        "arbitration",
    ]) {
        let why = refused(&format!("{key} = 1")).unwrap_or_default();
        assert!(
            why.starts_with(&format!("c.toml:4: device.fast.{key}: unknown key, allowed are kind, size, ")),
            "{why}"
        );
    }
}
