# From QEMU's -kernel (EL1, MMU off) to EL1 with addresses mapped to themselves: registers as device memory, RAM cached. Here the
# serial line and the program are mapped; the rest follows when the machine's description is read.

    .section .text.start, "ax"
    .global start
start:
    msr daifset, #0xf
    # What the loader gave, for board_start.
    mov x20, x0
    # Another board may enter at EL2: down to EL1.
    mrs x0, CurrentEL
    cmp x0, #(2 << 2)
    b.ne 10f
    mov x0, #(1 << 31)
    msr hcr_el2, x0
    mov x0, #3
    msr cnthctl_el2, x0
    msr cntvoff_el2, xzr
    mov x0, #0x3c5
    msr spsr_el2, x0
    adr x0, 10f
    msr elr_el2, x0
    eret

    # After a restart the MMU is on: off, until the new table is there.
10: mrs x1, sctlr_el1
    mov x2, #0x1005
    bic x1, x1, x2
    msr sctlr_el1, x1
    isb
    # Level 1, blocks of 1 GiB, 39 bits of addresses.
    adrp x0, tables
    add x1, x0, #4096
20: stp xzr, xzr, [x1, #-16]!
    cmp x1, x0
    b.ne 20b
    # Block, access flag, memory type 0, not executable.
    ldr x1, =(0x0060000000000401 + ({registers} << 30))
    str x1, [x0, #({registers} * 8)]
    # The program's own: block, access flag, inner shareable, memory type 1.
    lsr x2, x0, #30
    mov x1, #0x705
    orr x1, x1, x2, lsl #30
    str x1, [x0, x2, lsl #3]
    # Type 0: Device-nGnRnE. Type 1: normal, write-back. Type 2: normal, not cached, which combines writes.
    ldr x1, =0x44ff00
    msr mair_el1, x1
    # 39 bits, 4 KiB, walks cached and inner shareable, no upper half, 40 physical bits.
    ldr x1, =0x200803519
    msr tcr_el1, x1
    msr ttbr0_el1, x0
    # FPU and SIMD without a trap.
    mov x1, #(3 << 20)
    msr cpacr_el1, x1
    adrp x1, exception_vectors
    add x1, x1, :lo12:exception_vectors
    msr vbar_el1, x1
    dsb ish
    tlbi vmalle1
    dsb ish
    isb
    # MMU, data cache, instruction cache.
    mrs x1, sctlr_el1
    mov x2, #0x1005
    orr x1, x1, x2
    bic x1, x1, #2
    msr sctlr_el1, x1
    isb

    adrp x0, stack_top
    add x0, x0, :lo12:stack_top
    mov sp, x0
    adrp x0, bss_start
    add x0, x0, :lo12:bss_start
    adrp x1, bss_end
    add x1, x1, :lo12:bss_end
30: cmp x0, x1
    b.hs 40f
    stp xzr, xzr, [x0], #16
    b 30b
40: mov x0, x20
    bl board_start
50: wfi
    b 50b

    # 16 entries of 128 bytes; those of the present level with its own stack are used: interrupts at 5, all others are faults.
    .section .text.vectors, "ax"
    .balign 2048
exception_vectors:
    .set entry, 0
    .rept 16
    .balign 128
    .if entry == 5
    b interrupt
    .else
    mov x0, #entry
    mrs x1, esr_el1
    mrs x2, elr_el1
    mrs x3, far_el1
    b board_fault
    .endif
    .set entry, entry + 1
    .endr

interrupt:
    sub sp, sp, #(24 * 8 + 32 * 16)
    stp x0, x1, [sp, #0]
    stp x2, x3, [sp, #16]
    stp x4, x5, [sp, #32]
    stp x6, x7, [sp, #48]
    stp x8, x9, [sp, #64]
    stp x10, x11, [sp, #80]
    stp x12, x13, [sp, #96]
    stp x14, x15, [sp, #112]
    stp x16, x17, [sp, #128]
    stp x18, x29, [sp, #144]
    mrs x0, elr_el1
    mrs x1, spsr_el1
    stp x30, x0, [sp, #160]
    str x1, [sp, #176]
    add x0, sp, #192
    stp q0, q1, [x0, #0]
    stp q2, q3, [x0, #32]
    stp q4, q5, [x0, #64]
    stp q6, q7, [x0, #96]
    stp q16, q17, [x0, #256]
    stp q18, q19, [x0, #288]
    stp q20, q21, [x0, #320]
    stp q22, q23, [x0, #352]
    stp q24, q25, [x0, #384]
    stp q26, q27, [x0, #416]
    stp q28, q29, [x0, #448]
    stp q30, q31, [x0, #480]
    bl board_interrupt
    add x0, sp, #192
    ldp q0, q1, [x0, #0]
    ldp q2, q3, [x0, #32]
    ldp q4, q5, [x0, #64]
    ldp q6, q7, [x0, #96]
    ldp q16, q17, [x0, #256]
    ldp q18, q19, [x0, #288]
    ldp q20, q21, [x0, #320]
    ldp q22, q23, [x0, #352]
    ldp q24, q25, [x0, #384]
    ldp q26, q27, [x0, #416]
    ldp q28, q29, [x0, #448]
    ldp q30, q31, [x0, #480]
    ldp x30, x0, [sp, #160]
    ldr x1, [sp, #176]
    msr elr_el1, x0
    msr spsr_el1, x1
    ldp x18, x29, [sp, #144]
    ldp x16, x17, [sp, #128]
    ldp x14, x15, [sp, #112]
    ldp x12, x13, [sp, #96]
    ldp x10, x11, [sp, #80]
    ldp x8, x9, [sp, #64]
    ldp x6, x7, [sp, #48]
    ldp x4, x5, [sp, #32]
    ldp x2, x3, [sp, #16]
    ldp x0, x1, [sp, #0]
    add sp, sp, #(24 * 8 + 32 * 16)
    eret

    .section .tables, "aw", %nobits
    .balign 4096
    .global tables
tables:
    .skip 4096
