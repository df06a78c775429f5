//! Running rows through a loaded model, for tests of every library.

use symphony_gpu::HostModel;

/// Runs these rows in one batch, and returns the outputs of each.
pub(crate) fn run_rows(model: &mut dyn HostModel, rows: &[Vec<u8>]) -> Vec<Vec<u8>> {
    rows.iter().enumerate().for_each(|(at, row)| model.stage(at, row));
    model.run(rows.len()).unwrap();
    let bytes = model.signature().output_bytes();
    let output = |row| {
        let mut output = vec![0; bytes];
        model.unstage(row, &mut output);
        output
    };
    (0..rows.len()).map(output).collect()
}
