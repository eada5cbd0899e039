/* Instructions of a step, least and most of 10,000: QEMU's clock goes on by 1024 ns for each of them (-icount shift=10),
   that is 25.6 ticks of the system timer at 25 MHz. */
#include <stdint.h>
#include <stdio.h>

#include "controller.h"

#define TIMER ((volatile uint32_t *)0xE000E010u)

int main(void) {
    static controller_t c;
    static const double equilibrium[] = CONTROLLER_Y_EQUILIBRIUM;
    uint32_t random = 1, least = 0xFFFFFFFFu, most = 0, empty = 0xFFFFFFFFu;
    TIMER[1] = 0xFFFFFF;
    TIMER[2] = 0;
    TIMER[0] = 5; /* on, from the processor's clock */
    controller_init(&c);
    for (int k = -2; k < 10000; ++k) {
        real_t y[CONTROLLER_NUM_MEASURED + 1], u[CONTROLLER_NUM_INPUTS + 1];
        for (int i = 0; i < CONTROLLER_NUM_MEASURED; ++i) {
            random = random * 1664525u + 1013904223u;
            y[i] = (real_t)(equilibrium[i] + 0.01 * ((double)(random >> 8) / 16777216.0 - 0.5));
        }
        const uint32_t before = TIMER[2];
        if (k >= 0) {
            controller_step(&c, y, u);
        }
        const uint32_t ticks = (before - TIMER[2]) & 0xFFFFFF;
        if (k < 0) {
            empty = ticks;
        } else {
            least = ticks < least ? ticks : least;
            most = ticks > most ? ticks : most;
        }
    }
    printf("%lu %lu\n", (unsigned long)((least - empty) * 10 / 256), (unsigned long)((most - empty) * 10 / 256));
    return 0;
}
