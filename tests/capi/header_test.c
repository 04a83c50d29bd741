// The header is C11, and the structures are laid out on 64-bit machines as in the first library of
// this ABI version. A member that comes later stands at the end, so these never change.
#include <spillway.h>
#include <stddef.h>

#define OFFSET(structure, member, bytes) \
  _Static_assert(offsetof(structure, member) == (bytes), #structure "." #member)

OFFSET(spillway_tensor, size, 0);
OFFSET(spillway_tensor, dtype, 4);
OFFSET(spillway_tensor, device, 8);
OFFSET(spillway_tensor, device_index, 12);
OFFSET(spillway_tensor, data, 16);
OFFSET(spillway_tensor, shape, 24);
OFFSET(spillway_tensor, dimensions, 32);
OFFSET(spillway_group, optimizer, 4);
OFFSET(spillway_group, lr, 8);
OFFSET(spillway_group, beta1, 16);
OFFSET(spillway_group, beta2, 24);
OFFSET(spillway_group, eps, 32);
OFFSET(spillway_group, weight_decay, 40);
OFFSET(spillway_group, decay_mode, 48);
OFFSET(spillway_group, bias_correction, 52);
OFFSET(spillway_options, state_format, 4);
OFFSET(spillway_options, gradients_per_step, 8);
OFFSET(spillway_options, defers_updates, 12);
OFFSET(spillway_options, zeros_for_missing, 16);
OFFSET(spillway_options, isa, 20);
OFFSET(spillway_options, threads, 24);
OFFSET(spillway_options, nvme_count, 28);
OFFSET(spillway_options, nvme, 32);
OFFSET(spillway_options, host_memory, 40);
OFFSET(spillway_options, tile_parameters, 48);
OFFSET(spillway_options, seed, 56);
OFFSET(spillway_options, traces, 64);
OFFSET(spillway_options, device, 72);
OFFSET(spillway_options, device_index, 76);
OFFSET(spillway_options, device_memory, 80);
OFFSET(spillway_options, gradient_memory, 88);
OFFSET(spillway_step_options, gradient_divisor, 8);
OFFSET(spillway_step_options, max_norm, 16);
OFFSET(spillway_step_options, ready, 24);
OFFSET(spillway_step_options, handle, 32);
OFFSET(spillway_step_result, skipped, 4);
OFFSET(spillway_step_result, step, 8);
OFFSET(spillway_step_result, grad_norm, 16);
OFFSET(spillway_memory_row, tier, 8);
OFFSET(spillway_memory_row, what, 16);
OFFSET(spillway_memory_row, bytes, 24);
OFFSET(spillway_lane_row, lane, 8);
OFFSET(spillway_lane_row, bytes, 16);
OFFSET(spillway_lane_row, seconds, 24);

int main(void) {
  spillway_tensor tensor = SPILLWAY_TENSOR_INIT;
  spillway_group group = SPILLWAY_GROUP_INIT;
  spillway_options options = SPILLWAY_OPTIONS_INIT;
  spillway_step_options step = SPILLWAY_STEP_OPTIONS_INIT;
  spillway_step_result result = SPILLWAY_STEP_RESULT_INIT;
  spillway_memory_row memory = SPILLWAY_MEMORY_ROW_INIT;
  spillway_lane_row lane = SPILLWAY_LANE_ROW_INIT;
  (void)tensor, (void)step, (void)result, (void)memory, (void)lane;
  return options.seed == 1234 && options.gradients_per_step == 1 && group.beta2 == 0.999 ? 0 : 1;
}
