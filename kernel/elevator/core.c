// SPDX-License-Identifier: GPL-2.0
/* The core as one unit for the compiler: a third of what a request costs in it would be calls. */
#include "flow.c"
#include "process.c"
#include "stage_queue.c"
#include "mindicator.c"
#include "token_tree.c"
#include "ready_set.c"
#include "throttle_wheel.c"
#include "scheduler.c"
