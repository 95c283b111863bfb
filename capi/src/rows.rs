//! Values under numbers of which each names one use of one row: a number whose value is gone names nothing, for 2^32
//! uses of the row.

/// Rows, and those that are free.
pub struct Rows<T> {
    rows: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

/// Row of a number.
pub fn row_of(number: u64) -> usize {
    (number >> 32) as usize
}

impl<T> Rows<T> {
    pub const fn new() -> Rows<T> {
        Rows { rows: Vec::new(), free: Vec::new() }
    }

    /// Puts a value into a free row: its number, below 2^54 with fewer than 2^22 rows.
    pub fn put(&mut self, value: T) -> u64 {
        let row = self.free.pop().unwrap_or_else(|| {
            self.rows.push((0, None));
            self.rows.len() as u32 - 1
        });
        let of = &mut self.rows[row as usize];
        of.1 = Some(value);
        u64::from(row) << 32 | u64::from(of.0)
    }

    /// The value of a number.
    pub fn get(&self, number: u64) -> Option<&T> {
        self.rows.get(row_of(number)).filter(|row| row.0 == number as u32)?.1.as_ref()
    }

    /// Takes the value of a number out.
    pub fn take(&mut self, number: u64) -> Option<T> {
        let row = self.rows.get_mut(row_of(number)).filter(|row| row.0 == number as u32)?;
        let value = row.1.take()?;
        row.0 = row.0.wrapping_add(1);
        self.free.push(row_of(number) as u32);
        Some(value)
    }

    /// No row has a value.
    pub fn is_empty(&self) -> bool {
        self.free.len() == self.rows.len()
    }
}
