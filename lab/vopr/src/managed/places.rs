//! Bytes at each place of a drive and their owners: what a tenant may read there.
//!
//! | an export gets | and its tenant reads |
//! |---|---|
//! | bytes that its tenant wrote, there or in another export | them |
//! | bytes that another tenant had, or that a shrink gave up | zeroes |
//! | the same, with `keep-data = true` | what is there |
//! | bytes that it had, which another tenant was to get and never got | zeroes or them: no erase may have begun |
//! | bytes for which `keep-data` was withdrawn before they were offered | zeroes or what is there |

use super::wish::{Export, PLACES, QUARTER_SECTORS, QUARTERS, Wish};
use crate::oracle::Oracle;
use crate::server::SECTORS;
use std::cell::RefCell;
use std::rc::Rc;

/// One place.
pub struct Place {
    /// Judge of its bytes.
    pub oracle: Rc<RefCell<Oracle>>,
    /// By quarter: the tenant that may read it.
    owners: [Option<usize>; QUARTERS as usize],
    /// By quarter: it is to be erased, and may not have been yet.
    is_due: [bool; QUARTERS as usize],
    /// By quarter: `keep-data` gave it to its tenant, which may not have been offered it yet.
    is_kept: [bool; QUARTERS as usize],
    /// By quarter that is to be erased, or kept: the tenant that had it last.
    former: [Option<usize>; QUARTERS as usize],
}

/// All of them, of zeroes.
pub fn all() -> Vec<Place> {
    let oracle = |number: usize| Rc::new(RefCell::new(Oracle::new(number as u8 + 1, SECTORS)));
    let place = |number: usize| Place {
        oracle: oracle(number),
        owners: Default::default(),
        is_due: Default::default(),
        is_kept: Default::default(),
        former: Default::default(),
    };
    (0..PLACES).map(place).collect()
}

/// One wish becomes another, and what is at each place follows.
pub fn follow(places: &mut [Place], before: &Wish, after: &Wish) {
    for (number, (old, new)) in before.exports.iter().zip(&after.exports).enumerate() {
        let Some(new) = new else { continue };
        let stays = !after.is_another(before, number);
        if let Some(old) = old.as_ref().filter(|_| stays) {
            // Quarters that a shrink cuts off are given up.
            places[old.place].owners[new.quarters.min(old.quarters) as usize..old.quarters as usize].fill(None);
        }
        places[new.place].have(new, stays);
    }
}

impl Place {
    /// An export has it. `stays`: it had some of it, and its client may have asked for the rest.
    pub fn have(&mut self, export: &Export, stays: bool) {
        for quarter in 0..export.quarters as usize {
            let from = quarter * QUARTER_SECTORS;
            let is_open = self.is_due[quarter] || self.is_kept[quarter];
            match (self.owners[quarter] == Some(export.tenant), export.keeps == Some(true)) {
                (false, false) => {
                    self.oracle.borrow_mut().erase(from, QUARTER_SECTORS, stays);
                    (self.is_due[quarter], self.is_kept[quarter]) = (true, false);
                    if !is_open {
                        self.former[quarter] = self.owners[quarter];
                    } else if self.former[quarter] == Some(export.tenant) {
                        // No other tenant has had it since. Until requests there have ended no erase begins, and the
                        // bytes are still this tenant's.
                        self.oracle.borrow_mut().doubt(from, QUARTER_SECTORS);
                    }
                }
                // The tenant is shown the old bytes.
                (_, true) if self.is_due[quarter] => self.oracle.borrow_mut().doubt(from, QUARTER_SECTORS),
                (false, true) => {
                    self.is_kept[quarter] = true;
                    if !is_open {
                        self.former[quarter] = self.owners[quarter];
                    }
                }
                // It is erased, if it was not offered.
                (true, false) if self.is_kept[quarter] => {
                    (self.is_due[quarter], self.is_kept[quarter]) = (true, false);
                    self.oracle.borrow_mut().doubt(from, QUARTER_SECTORS);
                }
                _ => {}
            }
            self.owners[quarter] = Some(export.tenant);
        }
    }

    /// An export has all of it that it is to have.
    pub fn is_whole(&mut self, export: &Export) {
        let quarters = ..export.quarters as usize;
        self.is_due[quarters].fill(false);
        self.is_kept[quarters].fill(false);
    }
}
