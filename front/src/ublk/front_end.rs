//! ublk as the rest of the product sees it: which addresses it understands, and what is refused before the server is
//! ready.
//!
//! An address is a device's number, or `auto` for the next that is free. It is one export's alone.

use super::device::{self, Device, Meeting, Recovery};
use super::plan::{self, Plan};
use super::recovery_holder::RecoveryHolder;
use super::{NAMES, ZeroCopy};
use crate::export::ExportTable;
use crate::front_end::{Address, AddressFault, FrontEnd, ListenOptions, Listener, LogLine, Manner, next_client};
use crate::stats::Stats;
use mqfq_blk::client::{Client, MakeClient};
use mqfq_ublk::abi::{ANY_NUMBER, feature};
use mqfq_ublk::control::Control;
use std::fmt;
use std::sync::{Arc, mpsc};

/// Values that the key takes.
const ADDRESSES: &str = "a number from 0 to 1048575 (of /dev/ublkbN), \"auto\"";

/// Largest number: the driver has 2^20 minors for its character devices.
const NUMBER_MAX: u32 = (1 << 20) - 1;

/// The front end.
#[derive(Debug)]
pub struct Ublk;

impl FrontEnd for Ublk {
    fn name(&self) -> &'static str {
        NAMES.front_end
    }

    fn addresses(&self) -> &'static str {
        ADDRESSES
    }

    fn takes_numbers(&self) -> bool {
        true
    }

    fn parse(&self, text: &str) -> Result<Arc<dyn Address>, AddressFault> {
        let number = match text {
            "auto" => None,
            digits => match digits.parse() {
                // One spelling for each.
                Ok(number @ 0..=NUMBER_MAX) if number.to_string() == digits => Some(number),
                _ => return Err(AddressFault::Refused("is no number of a ublk device".to_owned())),
            },
        };
        Ok(Arc::new(UblkAddress { number, recovery: Recovery::None, zero_copy: ZeroCopy::Auto }))
    }

    fn manners(&self) -> &'static [Manner] {
        &[Manner { key: "recovery", values: Recovery::VALUES }, Manner { key: "zero-copy", values: ZeroCopy::VALUES }]
    }

    fn parse_with(&self, text: &str, values: &[&str]) -> Result<Arc<dyn Address>, AddressFault> {
        self.parse(text)?;
        let recovery = values.first().and_then(|value| Recovery::named(value)).unwrap_or(Recovery::None);
        let zero_copy = values.get(1).and_then(|value| ZeroCopy::named(value)).unwrap_or(ZeroCopy::Auto);
        let number = text.parse().ok();
        if number.is_none() && recovery != Recovery::None {
            let why = "has no recovery: the next server would not know which device was its own".to_owned();
            return Err(AddressFault::Refused(why));
        }
        Ok(Arc::new(UblkAddress { number, recovery, zero_copy }))
    }
}

/// A device's number, and its state without a server.
#[derive(Debug)]
struct UblkAddress {
    /// `None`: the next free one.
    number: Option<u32>,
    recovery: Recovery,
    zero_copy: ZeroCopy,
}

impl fmt::Display for UblkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            Some(number) => write!(f, "ublk {number}"),
            None => f.write_str("ublk auto"),
        }?;
        let (recovery, zero_copy) =
            (Recovery::VALUES[self.recovery as usize], ZeroCopy::VALUES[self.zero_copy as usize]);
        match (self.recovery, self.zero_copy) {
            (Recovery::None, ZeroCopy::Auto) => Ok(()),
            (Recovery::None, _) => write!(f, " (zero-copy {zero_copy})"),
            (_, ZeroCopy::Auto) => write!(f, " (recovery {recovery})"),
            (_, _) => write!(f, " (recovery {recovery}, zero-copy {zero_copy})"),
        }
    }
}

impl UblkAddress {
    /// The driver, which does what the address asks for.
    fn driver(&self) -> Result<Control, String> {
        let refused = |why: String| format!("cannot serve {self}: {why}");
        let control = Control::open().map_err(refused)?;
        let features = control.abilities().features;
        if self.recovery != Recovery::None && features & feature::USER_RECOVERY == 0 {
            return Err(refused("this kernel keeps no device without its server (Linux 6.1 does)".to_owned()));
        }
        Ok(control)
    }
}

impl Address for UblkAddress {
    fn claim(&self) -> Option<String> {
        self.number.map(|number| format!("ublk:{number}"))
    }

    fn folders(&self) -> &'static [&'static str] {
        &["/dev"]
    }

    // Devices are made, ended and recovered by commands that need CAP_SYS_ADMIN.
    fn needs_root(&self) -> bool {
        true
    }

    fn takes_several_exports(&self) -> bool {
        false
    }

    fn could_listen(&self) -> Result<(), String> {
        self.driver().map(drop)
    }

    fn listen(&self, exports: Arc<ExportTable>, options: &ListenOptions) -> Result<Box<dyn Listener>, String> {
        let refused = |why: String| format!("cannot serve {self}: {why}");
        let mut control = self.driver()?;
        let all = exports.all();
        if all.len() > 1 {
            return Err(refused(format!("it is for one export, not for {}", all.len())));
        }
        if let Some(export) = all.first() {
            device::params(export, false).map_err(refused)?;
        }
        if let Some(info) = self.number.and_then(|number| control.info(number).ok()) {
            let export = all.first().map(|export| export.name.as_str());
            if let Plan::Refuse(owner) = plan::plan(&info, export, plan::is_alive(info.pid), options.replaces) {
                return Err(refused(owner.why()));
            }
        }
        let no_descriptor = || refused("no descriptor is left".to_owned());
        let (orders, taken) = mpsc::channel();
        let meeting = Meeting::new().ok_or_else(no_descriptor)?;
        let (client, stats) = (next_client(), Stats::new(&NAMES));
        let device = Device {
            control,
            number: self.number.unwrap_or(ANY_NUMBER),
            recovery: self.recovery,
            zero_copy: self.zero_copy,
            exports,
            queues: u16::try_from(options.workers).unwrap_or(u16::MAX),
            bytes_max: options.bytes_in_flight_max,
            replaces: options.replaces,
            ending: options.ending.clone(),
            log: options.log.clone(),
            stats: stats.clone(),
            client,
            meeting: meeting.clone(),
            orders: (orders.clone(), taken),
            generation: 0,
        };
        let (ending, outlives) = (options.ending.clone(), self.recovery != Recovery::None);
        let stays = Box::new(move || outlives && ending.has_begun());
        let recovery_holder = RecoveryHolder::new(meeting, orders, stays, client);
        let address = self.to_string();
        Ok(Box::new(UblkListener { address, stats, client, recovery_holder, device }))
    }
}

/// A device that is not served yet.
struct UblkListener {
    address: String,
    stats: Arc<Stats>,
    client: u64,
    recovery_holder: RecoveryHolder,
    /// Its thread is started with its clients: one from before the sandbox would not be in it.
    device: Device,
}

impl Listener for UblkListener {
    fn address(&self) -> String {
        self.address.clone()
    }

    fn stats(&self) -> Arc<Stats> {
        self.stats.clone()
    }

    fn number(&self) -> u64 {
        self.client
    }

    fn into_clients(self: Box<Self>) -> Vec<MakeClient> {
        let UblkListener { address, recovery_holder, device, .. } = *self;
        let log = device.log.clone();
        if let Err(error) = mqfq_ublk::control::start_thread(move || device.run()) {
            let text = &format!("{address} is not served: no thread could be started: {error}");
            log.iter().for_each(|log| log(LogLine { text, export: None }));
            return Vec::new();
        }
        vec![Box::new(move || Box::new(recovery_holder) as Box<dyn Client>)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::front_end::ExportAddress;

    #[test]
    fn an_address_is_a_number_or_auto_and_one_exports_alone() {
        let address = |text| ExportAddress::parse(&Ublk, text);
        assert_eq!(address("7").unwrap().to_string(), "ublk 7");
        assert!(address("7").unwrap().collides_with(&address("7").unwrap()));
        assert!(!address("7").unwrap().collides_with(&address("8").unwrap()));
        for text in ["", "-1", "07", "1048576", "ublkb0", "unix:/a", "Auto"] {
            assert!(matches!(address(text), Err(AddressFault::Refused(why)) if why.contains("no number")), "{text}");
        }
    }

    #[test]
    fn recovery_is_part_of_an_address_and_needs_a_number() {
        let with = |text, manner| ExportAddress::parse_with(&Ublk, text, &[manner]).map(|address| address.to_string());
        assert_eq!(with("0", "reissue").unwrap(), "ublk 0 (recovery reissue)");
        assert_eq!(with("0", "none").unwrap(), "ublk 0");
        assert_eq!(with("auto", "none").unwrap(), "ublk auto");
        assert!(matches!(with("auto", "fail"), Err(AddressFault::Refused(why)) if why.contains("which device")));
        let reissue = ExportAddress::parse_with(&Ublk, "0", &["reissue"]).unwrap();
        assert!(reissue.collides_with(&ExportAddress::parse(&Ublk, "0").unwrap()), "one device");
    }

    #[test]
    fn zero_copy_is_part_of_an_address_and_used_where_it_holds_unless_it_is_set() {
        let with = |values: &[&str]| ExportAddress::parse_with(&Ublk, "0", values).unwrap().to_string();
        assert_eq!(with(&["none", "on"]), "ublk 0 (zero-copy on)");
        assert_eq!(with(&["fail", "on"]), "ublk 0 (recovery fail, zero-copy on)");
        assert_eq!(with(&["none", "off"]), "ublk 0 (zero-copy off)");
        assert_eq!([with(&["none", "auto"]), with(&["none"]), with(&[])], ["ublk 0"; 3]);
    }
}
