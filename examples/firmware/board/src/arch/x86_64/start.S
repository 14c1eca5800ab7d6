# From QEMU's -kernel (PVH: 32-bit protected mode, no paging) to 64-bit mode with every address mapped to itself.

    # Type 18 of the owner Xen: where a kernel is entered by PVH.
    .section .note.Xen, "a", @note
    .balign 4
    .long 4
    .long 8
    .long 18
    .asciz "Xen"
    .quad start

    .section .text.start, "ax"
    .code32
    .global start
start:
    cli
    cld
    mov esp, offset stack_top

    # One page of level 4, one of level 3, four of level 2: 2048 pages of 2 MiB.
    mov edi, offset tables
    xor eax, eax
    mov ecx, 6 * 1024
    rep stosd
    mov eax, offset tables + 0x1003
    mov dword ptr [tables], eax
    mov edi, offset tables + 0x1000
    mov eax, offset tables + 0x2003
    mov ecx, 4
10: mov dword ptr [edi], eax
    add edi, 8
    add eax, 0x1000
    dec ecx
    jnz 10b
    mov edi, offset tables + 0x2000
    mov eax, 0x83
    xor ecx, ecx
20: cmp ecx, 1024
    jb 30f
    # From 2 GiB on there are registers: uncached (PCD, PWT).
    or eax, 0x18
30: mov dword ptr [edi], eax
    add edi, 8
    add eax, 0x200000
    inc ecx
    cmp ecx, 2048
    jb 20b

    # CR4: PAE, and SSE with its exceptions. EFER: long mode. CR0: paging, no emulation of the FPU.
    mov eax, cr4
    or eax, 0x620
    mov cr4, eax
    mov eax, offset tables
    mov cr3, eax
    mov ecx, 0xc0000080
    rdmsr
    or eax, 0x100
    wrmsr
    mov eax, cr0
    and eax, 0xfffffffb
    or eax, 0x80000003
    mov cr0, eax
    lgdt [descriptors_pointer]
    push 8
    mov eax, offset long_mode
    push eax
    retf

    .code64
long_mode:
    mov ax, 16
    mov ds, ax
    mov es, ax
    mov ss, ax
    mov rsp, offset stack_top
    fninit
    mov rdi, offset bss_start
    mov rcx, offset bss_end
    sub rcx, rdi
    xor eax, eax
    rep stosb
    # The start info, which the loader gave.
    mov edi, ebx
    call board_start
40: hlt
    jmp 40b

    # Back to where a loader enters, with the start info in rdi: protected mode of 32 bits, no paging.
    .global leave_long_mode
leave_long_mode:
    cli
    mov ebx, edi
    push 24
    mov eax, offset protected_mode
    push rax
    retfq
    .code32
protected_mode:
    mov ax, 16
    mov ds, ax
    mov es, ax
    mov ss, ax
    mov eax, cr0
    and eax, 0x7fffffff
    mov cr0, eax
    mov ecx, 0xc0000080
    rdmsr
    and eax, 0xfffffeff
    wrmsr
    jmp start
    .code64

    # Where the processor goes for vectors 0 to 63, 16 bytes each. Some exceptions bring an error code, the others get a 0.
    .balign 16
    .global vector_stubs
vector_stubs:
    .set vector, 0
    .rept 64
    .balign 16
    .if vector == 8 || (vector >= 10 && vector <= 14) || vector == 17 || vector == 21 || vector == 29 || vector == 30
    .else
    .byte 0x6a, 0
    .endif
    .byte 0x6a, vector
    jmp any_vector
    .set vector, vector + 1
    .endr

any_vector:
    push rax
    push rcx
    push rdx
    push rsi
    push rdi
    push r8
    push r9
    push r10
    push r11
    mov rdi, rsp
    cld
    call board_vector
    pop r11
    pop r10
    pop r9
    pop r8
    pop rdi
    pop rsi
    pop rdx
    pop rcx
    pop rax
    add rsp, 16
    iretq

    .section .rodata.descriptors, "a"
    .balign 8
descriptors:
    .quad 0
    .quad 0x00af9a000000ffff
    .quad 0x00cf92000000ffff
    .quad 0x00cf9a000000ffff
descriptors_pointer:
    .word 31
    .quad descriptors

    .section .tables, "aw", @nobits
    .balign 4096
tables:
    .skip 6 * 4096
