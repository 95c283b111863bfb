//! `mqfq check`: what would `serve` refuse?

use super::options::Failure;
use super::prepare::{Prepared, Read};
use crate::output::Output;
use crate::upgrade::Received;
use crate::{control, devices, privilege};
use mqfq_blk::engine::Engine;
use mqfq_front::front_end::ExportAddress;
use mqfq_front::inherited::Inherited;
use mqfq_front::socket::SocketAddress;
use std::path::Path;

/// Does the steps of `serve` before it listens, and prints what it would serve.
///
/// # Errors
/// One sentence, the same as `serve` would give, or that stdout cannot be written.
pub fn check(config: &Path, json: bool) -> Result<(), String> {
    let output = Output::of_command(json)?;
    let result = check_and_say(config, &output);
    output.finish(None);
    match result {
        Ok(()) => output.check_reports(),
        Err(Failure::Sentence(sentence)) => Err(sentence),
        Err(Failure::Interrupted) => unreachable!("nothing interrupts a check"),
    }
}

fn check_and_say(config: &Path, output: &Output) -> Result<(), Failure> {
    let read = Read::config(config, &|| Ok(()))?;
    let prepared = Prepared::new(read, &mut devices::open_for_check, output, &|| Ok(()))?;
    prepared.could_serve(&Received::default(), &Inherited::default())?;
    let addresses: Vec<String> = prepared.tables.iter().map(|(address, _)| address.to_string()).collect();
    let settled = Engine::check(&prepared.engine_options())?;
    prepared.say_settled(&settled, output);
    prepared.say(false, &addresses, &settled, None, output);
    Ok(())
}

impl Prepared {
    /// Checks that the machine lets it serve: the one list of refusals of `serve` and `check` once the config is right.
    /// Nothing is made, and a server that runs is not disturbed. Sockets that came from another server (`received`) or
    /// from systemd (`activated`) are there already.
    pub(super) fn could_serve(&self, received: &Received, activated: &Inherited) -> Result<(), String> {
        privilege::look_up(&self.plan.server.privilege)?;
        self.control.as_ref().map(control::token_of).transpose()?;
        let control = self.control.iter().flat_map(|control| &control.listen);
        let mut own = control.chain(&self.plan.server.upgrade).filter(|address| !received.has_socket(address));
        own.try_for_each(SocketAddress::could_listen)?;
        let is_activated = |claim: Option<String>| claim.is_some_and(|claim| activated.has(&claim));
        let is_here = |address: &ExportAddress| received.listens_at(address) || is_activated(address.address().claim());
        let mut exports = self.tables.iter().map(|(address, _)| address).filter(|address| !is_here(address));
        exports.try_for_each(|address| address.address().could_listen())
    }
}
