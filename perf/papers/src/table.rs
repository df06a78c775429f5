//! A CSV file in memory: what an experiment's jobs found, and all that its chart and its claims are
//! made from.

use super::Rows;

/// Columns and rows of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    columns: Vec<String>,
    rows: Rows,
}

impl Table {
    /// A table of these rows.
    pub fn new(columns: &[&str], rows: Rows) -> Table {
        Table { columns: columns.iter().map(|&column| column.to_owned()).collect(), rows }
    }

    /// Reads a file that [`Table::csv`] wrote.
    ///
    /// Errors: no CSV, or other columns than `columns`.
    pub fn parse(text: &str, columns: &[&str]) -> Result<Table, String> {
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let found = reader.headers().map_err(|error| error.to_string())?;
        if found.iter().ne(columns.iter().copied()) {
            let found = found.iter().collect::<Vec<_>>().join(",");
            return Err(format!("the columns are `{found}`; they must be `{}`", columns.join(",")));
        }
        let row = |record: csv::Result<csv::StringRecord>| match record {
            Ok(record) => Ok(record.iter().map(str::to_owned).collect()),
            Err(error) => Err(error.to_string()),
        };
        Ok(Table::new(columns, reader.records().map(row).collect::<Result<Rows, String>>()?))
    }

    /// The table as CSV, with a line of column names.
    pub fn csv(&self) -> String {
        let mut writer = csv::Writer::from_writer(Vec::new());
        for record in std::iter::once(&self.columns).chain(&self.rows) {
            writer.write_record(record).expect("every row has a cell a column, and memory takes them");
        }
        let bytes = writer.into_inner().expect("memory takes them");
        String::from_utf8(bytes).expect("cells are text")
    }

    /// The rows.
    pub fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.rows.iter().map(|cells| Row { columns: &self.columns, cells })
    }

    /// The rows in which each of `keys` (column, text) holds.
    pub fn having<'a>(&'a self, keys: &'a [(&'a str, &'a str)]) -> impl Iterator<Item = Row<'a>> {
        self.rows().filter(move |row| keys.iter().all(|&(key, text)| row.text(key) == text))
    }

    /// Columns `x` and `y` of the rows in which each of `keys` (column, text) holds, with shares as
    /// percentages.
    pub fn percents(&self, keys: &[(&str, &str)], x: &str, y: &str) -> Vec<(f64, f64)> {
        self.points(keys, x, y).into_iter().map(|(x, share)| (x, 100.0 * share)).collect()
    }

    /// Columns `x` and `y` of the rows in which each of `keys` (column, text) holds.
    pub fn points(&self, keys: &[(&str, &str)], x: &str, y: &str) -> Vec<(f64, f64)> {
        self.having(keys).map(|row| (row.number(x), row.number(y))).collect()
    }

    /// The number in `column` of the first row in which each of `keys` (column, text) holds; NaN if
    /// there is none.
    pub fn number(&self, keys: &[(&str, &str)], column: &str) -> f64 {
        self.having(keys).next().map_or(f64::NAN, |row| row.number(column))
    }

    /// The different texts of a column, in order of appearance.
    pub fn distinct(&self, column: &str) -> Vec<String> {
        let mut found: Vec<String> = Vec::new();
        for row in self.rows() {
            if found.iter().all(|known| known != row.text(column)) {
                found.push(row.text(column).to_owned());
            }
        }
        found
    }

    /// The largest number of a column; 0 if there is none.
    pub fn highest(&self, column: &str) -> f64 {
        self.rows().map(|row| row.number(column)).fold(0.0, f64::max)
    }
}

/// A row of a [`Table`].
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    columns: &'a [String],
    cells: &'a [String],
}

impl<'a> Row<'a> {
    /// The cell in `column`; empty if there is no such column.
    pub fn text(&self, column: &str) -> &'a str {
        let at = self.columns.iter().position(|name| name == column);
        at.and_then(|at| self.cells.get(at)).map_or("", String::as_str)
    }

    /// The number in `column`; NaN if there is none.
    pub fn number(&self, column: &str) -> f64 {
        self.text(column).parse().unwrap_or(f64::NAN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_what_its_csv_says() {
        let rows = vec![vec!["nexus, 8 frontends".to_owned(), "12.5".to_owned()]];
        let table = Table::new(&["system", "rps"], rows);
        let read = Table::parse(&table.csv(), &["system", "rps"]).unwrap();
        assert_eq!(read, table);
        assert_eq!(read.number(&[("system", "nexus, 8 frontends")], "rps"), 12.5);
        assert!(read.rows().next().unwrap().number("system").is_nan());
    }

    #[test]
    fn other_columns_than_expected_are_named() {
        let error = Table::parse("a,b\n1,2\n", &["a", "c"]).unwrap_err();
        assert_eq!(error, "the columns are `a,b`; they must be `a,c`");
    }
}
