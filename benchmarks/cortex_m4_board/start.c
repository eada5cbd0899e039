/* A Cortex-M4 with a floating-point unit, as QEMU's board mps2-an386 has it: from reset to main. */
#include <stdint.h>

extern uint32_t stack_top[];
void _start(void);
void reset(void);
void stop(void);

void reset(void) {
    *(volatile uint32_t *)0xE000ED88u |= 0xFu << 20; /* the floating-point unit on */
    __asm volatile("dsb\n\tisb");
    _start();
}

void stop(void) {
    for (;;) {
    }
}

__attribute__((section(".vectors"), used)) static const void *const vectors[16] = {
    stack_top, (const void *)reset, (const void *)stop, (const void *)stop, (const void *)stop, (const void *)stop};
