// Trains a small network through Spillway's C interface. Its forward and backward are plain C, in
// four threads that each hand over the gradients of their part of the network.
//
//   usage: train FOLDER [disk]      FOLDER: for the checkpoint and, with `disk`, the optimizer's
//   state
//
// The network is y = sum over hidden units of out * tanh(in . x + bias); thread k has units
// [k * UNITS, (k + 1) * UNITS). It learns y = sin(3 a) * b from 256 points (a, b) of a grid.
#include <math.h>
#include <pthread.h>
#include <spillway.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 4, UNITS = 16, INPUTS = 3, SIDE = 16, POINTS = SIDE * SIDE, STEPS = 300 };
// Each thread has two parameters: hidden [UNITS, INPUTS] (two weights and a bias), output [UNITS].
enum { PARAMETERS = 2 * THREADS };
static const int64_t hidden_shape[] = {UNITS, INPUTS}, output_shape[] = {UNITS};

static float inputs[POINTS][INPUTS], targets[POINTS];
static float partial_sums[THREADS][POINTS];  // what each thread's units add to the network's output
static double losses[THREADS];               // mean squared error, the same in each thread
static pthread_barrier_t barrier;

/// Ends the program with the library's own words if a call has failed.
static void must(spillway_status status, const char* call) {
  if (status == SPILLWAY_OK) return;
  fprintf(stderr, "%s: %s: %s\n", call, spillway_status_name(status), spillway_last_message());
  exit(1);
}

static void make_points(void) {
  for (int i = 0; i < POINTS; ++i) {
    const float a = (float)(i / SIDE) / (SIDE - 1) * 2 - 1,
                b = (float)(i % SIDE) / (SIDE - 1) * 2 - 1;
    inputs[i][0] = a;
    inputs[i][1] = b;
    inputs[i][2] = 1;
    targets[i] = sinf(3 * a) * b;
  }
}

/// Registers the parameters, with start values from a linear congruential generator, and starts.
static spillway_trainer* make_trainer(const char* folder, int on_disk) {
  static float values[PARAMETERS][UNITS * INPUTS];
  spillway_trainer* trainer = NULL;
  must(spillway_create(&trainer), "spillway_create");
  spillway_group group = SPILLWAY_GROUP_INIT;
  group.lr = 0.02;
  must(spillway_add_group(trainer, &group, NULL), "spillway_add_group");
  uint32_t random = 1;
  for (uint32_t p = 0; p < PARAMETERS; ++p) {
    const int is_hidden = p % 2 == 0, count = is_hidden ? UNITS * INPUTS : UNITS;
    for (int i = 0; i < count; ++i) {
      random = random * 1664525u + 1013904223u;
      values[p][i] = ((float)(random >> 8) / (1 << 23) - 1) * (is_hidden ? 2.0f : 0.2f);
    }
    char name[32];
    snprintf(name, sizeof name, "%s.%u", is_hidden ? "hidden" : "output", (unsigned)p / 2);
    spillway_tensor tensor = SPILLWAY_TENSOR_INIT;
    tensor.data = values[p];
    tensor.shape = is_hidden ? hidden_shape : output_shape;
    tensor.dimensions = is_hidden ? 2 : 1;
    must(spillway_add_parameter(trainer, name, 0, &tensor, NULL), "spillway_add_parameter");
  }
  spillway_options options = SPILLWAY_OPTIONS_INIT;
  options.threads = 2;
  if (on_disk) {
    options.nvme = &folder;
    options.nvme_count = 1;
  }
  must(spillway_start(trainer, &options), "spillway_start");
  return trainer;
}

typedef struct worker {
  spillway_trainer* trainer;
  uint32_t index;
} worker;

static const float* values_of(spillway_trainer* trainer, uint32_t parameter) {
  spillway_tensor values = SPILLWAY_TENSOR_INIT;
  must(spillway_values(trainer, parameter, &values), "spillway_values");
  return values.data;
}

static void hand_over(spillway_trainer* trainer, uint32_t parameter, float* gradient,
                      const int64_t* shape, int32_t dimensions) {
  spillway_tensor tensor = SPILLWAY_TENSOR_INIT;
  tensor.data = gradient;
  tensor.shape = shape;
  tensor.dimensions = dimensions;
  must(spillway_gradient_ready(trainer, parameter, &tensor, SPILLWAY_READY_NOW, NULL),
       "spillway_gradient_ready");
}

/// Runs forward and backward of one thread's units, and hands over their gradients.
static void* run_worker(void* argument) {
  const worker* self = argument;
  const float* hidden = values_of(self->trainer, 2 * self->index);      // [UNITS, INPUTS]
  const float* output = values_of(self->trainer, 2 * self->index + 1);  // [UNITS]
  float activations[POINTS][UNITS];
  for (int i = 0; i < POINTS; ++i) {
    float sum = 0;
    for (int u = 0; u < UNITS; ++u) {
      float z = 0;
      for (int x = 0; x < INPUTS; ++x) z += hidden[u * INPUTS + x] * inputs[i][x];
      activations[i][u] = tanhf(z);
      sum += output[u] * activations[i][u];
    }
    partial_sums[self->index][i] = sum;
  }
  pthread_barrier_wait(&barrier);  // every thread's part of the output is there

  float hidden_gradient[UNITS * INPUTS] = {0}, output_gradient[UNITS] = {0};
  double loss = 0;
  for (int i = 0; i < POINTS; ++i) {
    float error = -targets[i];
    for (int k = 0; k < THREADS; ++k) error += partial_sums[k][i];
    loss += (double)error * error / POINTS;
    for (int u = 0; u < UNITS; ++u) {
      const float a = activations[i][u], slope = 2 * error / POINTS;
      output_gradient[u] += slope * a;
      for (int x = 0; x < INPUTS; ++x) {
        hidden_gradient[u * INPUTS + x] += slope * output[u] * (1 - a * a) * inputs[i][x];
      }
    }
  }
  losses[self->index] = loss;
  hand_over(self->trainer, 2 * self->index + 1, output_gradient, output_shape, 1);
  hand_over(self->trainer, 2 * self->index, hidden_gradient, hidden_shape, 2);
  return NULL;
}

/// Trains `steps` steps, with a learning rate that falls to zero, and returns the last loss.
static double train(spillway_trainer* trainer, int steps) {
  spillway_group group = SPILLWAY_GROUP_INIT;
  must(spillway_get_group(trainer, 0, &group), "spillway_get_group");
  const double lr = group.lr;
  spillway_step_options options = SPILLWAY_STEP_OPTIONS_INIT;
  options.max_norm = 1;
  for (int step = 0; step < steps; ++step) {
    pthread_t threads[THREADS];
    worker workers[THREADS];
    for (uint32_t k = 0; k < THREADS; ++k) {
      workers[k] = (worker){trainer, k};
      if (pthread_create(&threads[k], NULL, run_worker, &workers[k]) != 0) exit(1);
    }
    for (int k = 0; k < THREADS; ++k) pthread_join(threads[k], NULL);
    group.lr = lr * (steps - step) / steps;
    must(spillway_set_group(trainer, 0, &group), "spillway_set_group");
    spillway_step_result result = SPILLWAY_STEP_RESULT_INIT;
    must(spillway_step(trainer, &options, &result), "spillway_step");
    if (step % 100 == 0) {
      printf("step %llu: loss %.6f, norm of the gradient %.6f\n", (unsigned long long)result.step,
             losses[0], result.grad_norm);
    }
  }
  return losses[0];
}

static void print_memory(spillway_trainer* trainer) {
  spillway_memory_row row = SPILLWAY_MEMORY_ROW_INIT;
  for (uint32_t i = 0;; ++i) {
    must(spillway_get_memory(trainer, i, &row), "spillway_get_memory");
    if (row.tier == NULL) return;
    printf("memory: %s, %s: %llu bytes\n", row.tier, row.what, (unsigned long long)row.bytes);
  }
}

/// Saves, and loads into another trainer, which then has the same parameters.
static void save_and_load(spillway_trainer* trainer, const char* folder) {
  char path[4096];
  snprintf(path, sizeof path, "%s/checkpoint", folder);
  must(spillway_save(trainer, path), "spillway_save");
  spillway_trainer* other = make_trainer(folder, /*on_disk=*/0);
  must(spillway_load(other, path), "spillway_load");
  for (uint32_t p = 0; p < PARAMETERS; ++p) {
    const size_t bytes = (p % 2 == 0 ? UNITS * INPUTS : UNITS) * sizeof(float);
    if (memcmp(values_of(trainer, p), values_of(other, p), bytes) != 0) {
      fprintf(stderr, "parameter %u differs after loading\n", (unsigned)p);
      exit(1);
    }
  }
  must(spillway_destroy(other), "spillway_destroy");
}

int main(int count, char** arguments) {
  if (count < 2 || spillway_abi_version() != SPILLWAY_ABI_VERSION) {
    fprintf(stderr, "usage: train FOLDER [disk]\n");
    return 2;
  }
  const int on_disk = count > 2 && strcmp(arguments[2], "disk") == 0;
  make_points();
  pthread_barrier_init(&barrier, NULL, THREADS);
  spillway_trainer* trainer = make_trainer(arguments[1], on_disk);
  print_memory(trainer);
  const double loss = train(trainer, STEPS);
  printf("loss %.6f after %d steps\n", loss, STEPS);
  save_and_load(trainer, arguments[1]);
  must(spillway_destroy(trainer), "spillway_destroy");
  pthread_barrier_destroy(&barrier);
  return loss < 0.005 ? 0 : 1;  // it starts at about 0.4
}
