# From QEMU's -bios none -kernel (M-mode, no translation) to Rust.
    .option arch, +d

    .section .text.start, "ax"
    .global start
start:
    csrw mie, zero
    csrci mstatus, 8
    # One processor works, the others sleep.
    csrr t0, mhartid
    bnez t0, 30f
    la t0, any_trap
    csrw mtvec, t0
    # FPU on.
    li t0, 0x2000
    csrs mstatus, t0
    csrwi fcsr, 0
    la sp, stack_top
    la t0, bss_start
    la t1, bss_end
10: bgeu t0, t1, 20f
    sd zero, 0(t0)
    addi t0, t0, 8
    j 10b
    # The device tree, which the loader gave.
20: mv a0, a1
    call board_start
30: wfi
    j 30b

    .section .text.traps, "ax"
    .balign 4
any_trap:
    addi sp, sp, -(16 * 8 + 20 * 8)
    sd ra, 0(sp)
    sd t0, 8(sp)
    sd t1, 16(sp)
    sd t2, 24(sp)
    sd t3, 32(sp)
    sd t4, 40(sp)
    sd t5, 48(sp)
    sd t6, 56(sp)
    sd a0, 64(sp)
    sd a1, 72(sp)
    sd a2, 80(sp)
    sd a3, 88(sp)
    sd a4, 96(sp)
    sd a5, 104(sp)
    sd a6, 112(sp)
    sd a7, 120(sp)
    fsd ft0, 128(sp)
    fsd ft1, 136(sp)
    fsd ft2, 144(sp)
    fsd ft3, 152(sp)
    fsd ft4, 160(sp)
    fsd ft5, 168(sp)
    fsd ft6, 176(sp)
    fsd ft7, 184(sp)
    fsd ft8, 192(sp)
    fsd ft9, 200(sp)
    fsd ft10, 208(sp)
    fsd ft11, 216(sp)
    fsd fa0, 224(sp)
    fsd fa1, 232(sp)
    fsd fa2, 240(sp)
    fsd fa3, 248(sp)
    fsd fa4, 256(sp)
    fsd fa5, 264(sp)
    fsd fa6, 272(sp)
    fsd fa7, 280(sp)
    csrr a0, mcause
    csrr a1, mepc
    csrr a2, mtval
    call board_trap
    ld ra, 0(sp)
    ld t0, 8(sp)
    ld t1, 16(sp)
    ld t2, 24(sp)
    ld t3, 32(sp)
    ld t4, 40(sp)
    ld t5, 48(sp)
    ld t6, 56(sp)
    ld a0, 64(sp)
    ld a1, 72(sp)
    ld a2, 80(sp)
    ld a3, 88(sp)
    ld a4, 96(sp)
    ld a5, 104(sp)
    ld a6, 112(sp)
    ld a7, 120(sp)
    fld ft0, 128(sp)
    fld ft1, 136(sp)
    fld ft2, 144(sp)
    fld ft3, 152(sp)
    fld ft4, 160(sp)
    fld ft5, 168(sp)
    fld ft6, 176(sp)
    fld ft7, 184(sp)
    fld ft8, 192(sp)
    fld ft9, 200(sp)
    fld ft10, 208(sp)
    fld ft11, 216(sp)
    fld fa0, 224(sp)
    fld fa1, 232(sp)
    fld fa2, 240(sp)
    fld fa3, 248(sp)
    fld fa4, 256(sp)
    fld fa5, 264(sp)
    fld fa6, 272(sp)
    fld fa7, 280(sp)
    addi sp, sp, (16 * 8 + 20 * 8)
    mret
