/* SPDX-License-Identifier: GPL-2.0 */
/*
 * How far apart may queues run? T = D * 4 KiB / n, where n flows wait: rounded down to a power of
 * two, 16 to 256 KiB at weight 100, and left alone while the quotient swings by a quarter.
 *
 * Source: sched/src/tune/window_rule.rs, N1 to N3, to the unit (agreement/tests/all/controllers.rs), for
 * workers that keep up: requests end one by one here.
 */
#ifndef MQFQ_WINDOW_RULE_H
#define MQFQ_WINDOW_RULE_H

#include "shim.h"

struct mqfq_window_rule {
	u64 waiting_parts;	/* mean of the flows that wait, 4096ths; 0: none yet */
	u64 window_bytes;	/* T */
};

void mqfq_window_rule_init(struct mqfq_window_rule *rule, u64 window_bytes);
u64 mqfq_window_rule_step(struct mqfq_window_rule *rule, u32 depth, u32 waiting);

#endif
