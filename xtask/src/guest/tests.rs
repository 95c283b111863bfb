//! Tests of how the harness reads a server's metrics.

use super::*;

#[test]
fn a_tenants_metric_is_summed_over_operations_and_over_nothing_else() {
    let text = "# TYPE bytes counter\n\
                bytes_total{device=\"flash\",tenant=\"small\",operation=\"read\"} 100\n\
                bytes_total{device=\"flash\",tenant=\"small\",operation=\"write\"} 20 # {} 1\n\
                bytes_total{device=\"disk\",tenant=\"small\",operation=\"read\"} 3\n\
                bytes_total{device=\"flash\",tenant=\"large\",operation=\"read\"} 4000\n\
                bytes_total_more{device=\"flash\",tenant=\"small\",operation=\"read\"} 50000\n";
    let of = |tenant| metric(text, "bytes_total", tenant);
    assert_eq!([of("small"), of("large"), of("nobody")], [120.0, 4000.0, 0.0]);
}
