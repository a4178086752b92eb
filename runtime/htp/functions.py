"""Functions that LLVM calls on Hexagon and no library provides, as LLVM IR: square roots, divisions, copies, a heap.

They are part of the resident program, and kernels are linked to them there. Roots and quotients are rounded to nearest
even, one bit of the result after another; nan, infinities, zeros and subnormal numbers are as IEEE 754 says.
"""

from __future__ import annotations

__all__ = ["FUNCTIONS", "function_names"]

_COPIES = """
define ptr @memset(ptr %p, i32 %v, i32 %n) nounwind noinline optnone {
entry:
  %b = trunc i32 %v to i8
  %any = icmp ne i32 %n, 0
  br i1 %any, label %loop, label %out
loop:
  %i = phi i32 [ 0, %entry ], [ %i1, %loop ]
  %q = getelementptr i8, ptr %p, i32 %i
  store volatile i8 %b, ptr %q
  %i1 = add i32 %i, 1
  %more = icmp ult i32 %i1, %n
  br i1 %more, label %loop, label %out
out:
  ret ptr %p
}
define ptr @memcpy(ptr %p, ptr %s, i32 %n) nounwind noinline optnone {
entry:
  %any = icmp ne i32 %n, 0
  br i1 %any, label %loop, label %out
loop:
  %i = phi i32 [ 0, %entry ], [ %i1, %loop ]
  %q = getelementptr i8, ptr %p, i32 %i
  %t = getelementptr i8, ptr %s, i32 %i
  %b = load volatile i8, ptr %t
  store volatile i8 %b, ptr %q
  %i1 = add i32 %i, 1
  %more = icmp ult i32 %i1, %n
  br i1 %more, label %loop, label %out
out:
  ret ptr %p
}
"""
_HEAP = """
@refused = global i64 0
define ptr @malloc(i64 %n) nounwind noinline {
  %n32 = trunc i64 %n to i32
  %all = add i32 %n32, 128
  %m = call i32 @sys.mmap(i32 0, i32 %all, i32 3, i32 34, i32 -1, i32 0)
  %bad = icmp ugt i32 %m, -4096
  %p = inttoptr i32 %m to ptr
  br i1 %bad, label %none, label %some
none:
  ret ptr null
some:
  store i32 %all, ptr %p, align 4
  %q = getelementptr i8, ptr %p, i32 128
  ret ptr %q
}
define void @free(ptr %q) nounwind noinline {
  %p = getelementptr i8, ptr %q, i32 -128
  %n = load i32, ptr %p, align 4
  %a = ptrtoint ptr %p to i32
  %u = call i32 @sys.munmap(i32 %a, i32 %n)
  ret void
}
define void @km_no_memory(i64 %n) nounwind noinline {
  store i64 %n, ptr @refused, align 8
  ret void
}
"""
_PARTS = """
; fraction with its leading bit at 52, and exponent, of a positive finite number above zero
define internal i64 @km.fraction(i64 %b, ptr %exponent) nounwind noinline {
  %e = lshr i64 %b, 52
  %f = and i64 %b, 4503599627370495
  %tiny = icmp eq i64 %e, 0
  br i1 %tiny, label %subnormal, label %normal
normal:
  %e1 = sub i64 %e, 1023
  store i64 %e1, ptr %exponent, align 8
  %f1 = or i64 %f, 4503599627370496
  ret i64 %f1
subnormal:
  %z = call i64 @llvm.ctlz.i64(i64 %f, i1 false)
  %by = sub i64 %z, 11
  %e2 = sub i64 -1022, %by
  store i64 %e2, ptr %exponent, align 8
  %f2 = shl i64 %f, %by
  ret i64 %f2
}
; q has 55 bits, the last two below the last of the result; the value is q * 2**(e - 54) and a bit more if rest
define internal double @km.rounded(i64 %sign, i64 %e, i64 %q, i1 %rest) nounwind noinline {
  %rest64 = zext i1 %rest to i64
  %q1 = shl i64 %q, 1
  %x = or i64 %q1, %rest64
  %biased = add i64 %e, 1023
  %low = icmp sle i64 %biased, 0
  br i1 %low, label %subnormal, label %normal
subnormal:
  %far = sub i64 1, %biased
  %big = icmp sgt i64 %far, 60
  %by = select i1 %big, i64 60, i64 %far
  %shifted = lshr i64 %x, %by
  %back = shl i64 %shifted, %by
  %lost = icmp ne i64 %back, %x
  %lost64 = zext i1 %lost to i64
  %y = or i64 %shifted, %lost64
  br label %round
normal:
  %above = sub i64 %biased, 1
  %base = shl i64 %above, 52
  br label %round
round:
  %v = phi i64 [ %y, %subnormal ], [ %x, %normal ]
  %from = phi i64 [ 0, %subnormal ], [ %base, %normal ]
  %last = lshr i64 %v, 3
  %odd = and i64 %last, 1
  %v3 = add i64 %v, 3
  %up = add i64 %v3, %odd
  %m = lshr i64 %up, 3
  %bits = add i64 %from, %m
  %over = icmp sge i64 %biased, 2047
  %finite = select i1 %over, i64 9218868437227405312, i64 %bits
  %all = or i64 %finite, %sign
  %d = bitcast i64 %all to double
  ret double %d
}
declare i64 @llvm.ctlz.i64(i64, i1)
"""
_DOUBLES = """
define double @__hexagon_divdf3(double %a, double %b) nounwind noinline {
entry:
  %ea = alloca i64
  %eb = alloca i64
  %ab = bitcast double %a to i64
  %bb = bitcast double %b to i64
  %x = xor i64 %ab, %bb
  %sign = and i64 %x, -9223372036854775808
  %aa = and i64 %ab, 9223372036854775807
  %ba = and i64 %bb, 9223372036854775807
  %an = icmp ugt i64 %aa, 9218868437227405312
  %bn = icmp ugt i64 %ba, 9218868437227405312
  %nan = or i1 %an, %bn
  br i1 %nan, label %isnan, label %numbers
isnan:
  %sum = fadd double %a, %b
  ret double %sum
numbers:
  %ai = icmp eq i64 %aa, 9218868437227405312
  %bi = icmp eq i64 %ba, 9218868437227405312
  %az = icmp eq i64 %aa, 0
  %bz = icmp eq i64 %ba, 0
  %ii = and i1 %ai, %bi
  %zz = and i1 %az, %bz
  %bad = or i1 %ii, %zz
  br i1 %bad, label %invalid, label %some
invalid:
  ret double 0x7FF8000000000000
some:
  %large = or i1 %ai, %bz
  %small = or i1 %az, %bi
  br i1 %large, label %infinite, label %next
infinite:
  %i = or i64 %sign, 9218868437227405312
  %id = bitcast i64 %i to double
  ret double %id
next:
  br i1 %small, label %zero, label %divide
zero:
  %zd = bitcast i64 %sign to double
  ret double %zd
divide:
  %fa = call i64 @km.fraction(i64 %aa, ptr %ea)
  %fb = call i64 @km.fraction(i64 %ba, ptr %eb)
  %e1 = load i64, ptr %ea, align 8
  %e2 = load i64, ptr %eb, align 8
  %e = sub i64 %e1, %e2
  %less = icmp ult i64 %fa, %fb
  %by = zext i1 %less to i64
  %r0 = shl i64 %fa, %by
  %ee = sub i64 %e, %by
  br label %loop
loop:
  %k = phi i32 [ 0, %divide ], [ %k1, %loop ]
  %q = phi i64 [ 0, %divide ], [ %q2, %loop ]
  %r = phi i64 [ %r0, %divide ], [ %r2, %loop ]
  %fits = icmp uge i64 %r, %fb
  %less1 = sub i64 %r, %fb
  %r1 = select i1 %fits, i64 %less1, i64 %r
  %bit = zext i1 %fits to i64
  %q1 = shl i64 %q, 1
  %q2 = or i64 %q1, %bit
  %r2 = shl i64 %r1, 1
  %k1 = add i32 %k, 1
  %more = icmp ult i32 %k1, 55
  br i1 %more, label %loop, label %done
done:
  %rest = icmp ne i64 %r2, 0
  %d = call double @km.rounded(i64 %sign, i64 %ee, i64 %q2, i1 %rest)
  ret double %d
}
define double @sqrt(double %a) nounwind noinline {
entry:
  %ea = alloca i64
  %b = bitcast double %a to i64
  %abs = and i64 %b, 9223372036854775807
  %zero = icmp eq i64 %abs, 0
  %big = icmp ugt i64 %abs, 9218868437227405312
  %same0 = or i1 %zero, %big
  br i1 %same0, label %same, label %signed
signed:
  %negative = icmp slt i64 %b, 0
  br i1 %negative, label %invalid, label %positive
invalid:
  ret double 0x7FF8000000000000
positive:
  %infinite = icmp eq i64 %abs, 9218868437227405312
  br i1 %infinite, label %same, label %root
same:
  ret double %a
root:
  %f0 = call i64 @km.fraction(i64 %abs, ptr %ea)
  %e0 = load i64, ptr %ea, align 8
  %odd = and i64 %e0, 1
  %f = shl i64 %f0, %odd
  %e1 = sub i64 %e0, %odd
  %e = ashr i64 %e1, 1
  br label %loop
loop:
  %k = phi i64 [ 52, %root ], [ %k1, %loop ]
  %q = phi i64 [ 0, %root ], [ %q2, %loop ]
  %r = phi i64 [ 0, %root ], [ %r3, %loop ]
  %has = icmp sge i64 %k, 0
  %by = select i1 %has, i64 %k, i64 0
  %digits0 = lshr i64 %f, %by
  %digits1 = and i64 %digits0, 3
  %digits = select i1 %has, i64 %digits1, i64 0
  %r1 = shl i64 %r, 2
  %r2 = or i64 %r1, %digits
  %t0 = shl i64 %q, 2
  %t = or i64 %t0, 1
  %fits = icmp uge i64 %r2, %t
  %less = sub i64 %r2, %t
  %r3 = select i1 %fits, i64 %less, i64 %r2
  %bit = zext i1 %fits to i64
  %q1 = shl i64 %q, 1
  %q2 = or i64 %q1, %bit
  %k1 = sub i64 %k, 2
  %more = icmp sge i64 %k1, -56
  br i1 %more, label %loop, label %done
done:
  %rest = icmp ne i64 %r3, 0
  %d = call double @km.rounded(i64 0, i64 %e, i64 %q2, i1 %rest)
  ret double %d
}
; a * b + c in twice the precision: the error of the product by Veltkamp's splitting, that of the sum by Knuth's.
; The result may differ from the rounded one in its last bit; where the splitting overflows it is a * b + c.
define double @fma(double %a, double %b, double %c) nounwind noinline {
  %p = fmul double %a, %b
  %ah0 = fmul double %a, 134217729.0
  %ah1 = fsub double %ah0, %a
  %ah = fsub double %ah0, %ah1
  %al = fsub double %a, %ah
  %bh0 = fmul double %b, 134217729.0
  %bh1 = fsub double %bh0, %b
  %bh = fsub double %bh0, %bh1
  %bl = fsub double %b, %bh
  %hh = fmul double %ah, %bh
  %e0 = fsub double %hh, %p
  %hl = fmul double %ah, %bl
  %e1 = fadd double %e0, %hl
  %lh = fmul double %al, %bh
  %e2 = fadd double %e1, %lh
  %ll = fmul double %al, %bl
  %e = fadd double %e2, %ll
  %s = fadd double %p, %c
  %t0 = fsub double %s, %p
  %t1 = fsub double %s, %t0
  %t2 = fsub double %p, %t1
  %t3 = fsub double %c, %t0
  %t = fadd double %t2, %t3
  %rest = fadd double %t, %e
  %sum = fadd double %s, %rest
  %d = fsub double %rest, %rest
  %finite = fcmp oeq double %d, 0.0
  %some = fcmp une double %rest, 0.0
  %adds = and i1 %finite, %some
  br i1 %adds, label %exact, label %plain
exact:
  ret double %sum
plain:
  ret double %s
}
define float @__hexagon_sqrtf(float %x) nounwind noinline {
  %d = fpext float %x to double
  %r = call double @sqrt(double %d)
  %f = fptrunc double %r to float
  ret float %f
}
"""


def _division(bits: int) -> str:
    """The four division functions of one width, by shifts and subtractions."""
    t, n = f"i{bits}", "si3" if bits == 32 else "di3"
    unsigned = "\n".join(
        f"""define {t} @__hexagon_{name}{n}({t} %a, {t} %b) nounwind {{
  %p = alloca {t}
  %q = call {t} @km.divided{bits}({t} %a, {t} %b, ptr %p)
  %r = load {t}, ptr %p
  ret {t} %{result}
}}"""
        for name, result in (("udiv", "q"), ("umod", "r"))
    )
    signed = "\n".join(
        f"""define {t} @__hexagon_{name}{n}({t} %a, {t} %b) nounwind {{
  %sa = ashr {t} %a, {bits - 1}
  %sb = ashr {t} %b, {bits - 1}
  %xa = xor {t} %a, %sa
  %ua = sub {t} %xa, %sa
  %xb = xor {t} %b, %sb
  %ub = sub {t} %xb, %sb
  %q = call {t} @__hexagon_u{name}{n}({t} %ua, {t} %ub)
  %s = xor {t} %sa, {sign}
  %x = xor {t} %q, %s
  %r = sub {t} %x, %s
  ret {t} %r
}}"""
        for name, sign in (("div", "%sb"), ("mod", "0"))
    )
    return f"""
define internal {t} @km.divided{bits}({t} %a, {t} %b, ptr %rest) nounwind noinline {{
entry:
  br label %loop
loop:
  %k = phi {t} [ {bits - 1}, %entry ], [ %k1, %loop ]
  %q = phi {t} [ 0, %entry ], [ %q2, %loop ]
  %r = phi {t} [ 0, %entry ], [ %r3, %loop ]
  %ab = lshr {t} %a, %k
  %bit = and {t} %ab, 1
  %top = icmp slt {t} %r, 0
  %r1 = shl {t} %r, 1
  %r2 = or {t} %r1, %bit
  %ge = icmp uge {t} %r2, %b
  %fits = or i1 %ge, %top
  %less = sub {t} %r2, %b
  %r3 = select i1 %fits, {t} %less, {t} %r2
  %one = shl {t} 1, %k
  %with = or {t} %q, %one
  %q2 = select i1 %fits, {t} %with, {t} %q
  %k1 = sub {t} %k, 1
  %more = icmp sge {t} %k1, 0
  br i1 %more, label %loop, label %out
out:
  store {t} %r3, ptr %rest
  ret {t} %q2
}}
{unsigned}
{signed}
"""


FUNCTIONS = _COPIES + _HEAP + _PARTS + _DOUBLES + _division(32) + _division(64)


def function_names() -> list[str]:
    """Return the names that kernels may call."""
    lines = [line for line in FUNCTIONS.splitlines() if line.startswith("define ") and "internal" not in line]
    return [line.split("@")[1].split("(")[0] for line in lines]
