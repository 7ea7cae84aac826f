package ptrace

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

// TestOnReturn: results of a recursive function, by thread and depth.
func TestOnReturn(t *testing.T) {
	ways(t, func(t *testing.T, o *Options) {
		b := newBreaker(t, "fact")
		returns, open := 0, map[int][]uint64{}
		b.fn = func(task *Task, bp *Breakpoint) {
			r, _ := task.Regs()
			n, sp := r.Arg(0), r.SP()
			open[task.TID] = append(open[task.TID], n)
			err := task.OnReturn(func(task *Task, ret uint64) {
				returns++
				want := uint64(1)
				for i := uint64(2); i <= n; i++ {
					want *= i
				}
				r, err := task.Regs()
				if err != nil || ret != want || r.SP() != sp+8 || r.Ret() != ret {
					t.Errorf("%d! = %d at %#x, called at %#x; %v", n, ret, r.SP(), sp, err)
				}
				stack := open[task.TID]
				if len(stack) == 0 || stack[len(stack)-1] != n {
					t.Errorf("return from %d, open %v", n, stack)
				} else {
					open[task.TID] = stack[:len(stack)-1]
				}
				if err := task.OnReturn(func(*Task, uint64) {}); !errors.Is(err, ErrState) {
					t.Errorf("OnReturn at a return: %v", err)
				}
			})
			if err != nil {
				t.Error(err)
			}
		}
		got, _ := b.run(t, o, "recurse")
		if got.output != "0 bad\n" || b.hits["fact"] != 4*20*22 || returns != b.hits["fact"] {
			t.Errorf("%+v, %d hits, %d returns", got, b.hits["fact"], returns)
		}
	})
}

// TestOnReturnTail: a function that ends in a jump to another returns with it.
func TestOnReturnTail(t *testing.T) {
	ways(t, func(t *testing.T, o *Options) {
		b := newBreaker(t, "tail", "f_lea")
		var order []string
		b.fn = func(task *Task, bp *Breakpoint) {
			name := b.addrs[bp.Addr]
			for i := range 2 { // two parties
				if err := task.OnReturn(func(_ *Task, ret uint64) { order = append(order, fmt.Sprint(name, i, ":", ret)) }); err != nil {
					t.Error(err)
				}
			}
		}
		got, _ := b.run(t, o, "tails")
		if got.output != "6375\n" || len(order) != 200 {
			t.Fatalf("%+v, %d returns", got, len(order))
		}
		for i := range 50 {
			want := []string{fmt.Sprint("f_lea1:", i+103), fmt.Sprint("f_lea0:", i+103), fmt.Sprint("tail1:", i+103), fmt.Sprint("tail0:", i+103)}
			if !slices.Equal(order[4*i:4*i+4], want) {
				t.Fatalf("call %d: %v, want %v", i, order[4*i:4*i+4], want)
			}
		}
	})
}

// TestOnReturnLongjmp: a call that is left by longjmp does not return, and the
// next one at the same place is not taken for it.
func TestOnReturnLongjmp(t *testing.T) {
	ways(t, func(t *testing.T, o *Options) {
		b := newBreaker(t, "jumper")
		calls, returns := 0, 0
		var last *Task
		b.fn = func(task *Task, bp *Breakpoint) {
			calls++
			last = task
			if calls%3 != 1 && calls%2 == 0 { // every third jumps out; of the rest, watch some
				return
			}
			n, _ := task.Regs()
			arg := n.Arg(0)
			if err := task.OnReturn(func(_ *Task, ret uint64) {
				returns++
				if ret != arg+1 {
					t.Errorf("return of call %d: %d", arg, ret)
				}
			}); err != nil {
				t.Error(err)
			}
			if n := len(task.returns); n > 1 {
				t.Errorf("%d returns are waited for", n)
			}
		}
		got, _ := b.run(t, o, "longjmps")
		if got.output != "returned 40, jumped 20\n" || calls != 60 || returns != 20 {
			t.Errorf("%+v, %d calls, %d returns", got, calls, returns)
		}
		if last == nil || len(last.returns) != 0 {
			t.Error("a return is still waited for")
		}
	})
}

// TestOnReturnStacks: a function that switches stacks, lower and higher ones.
func TestOnReturnStacks(t *testing.T) {
	ways(t, func(t *testing.T, o *Options) {
		b := newBreaker(t, "switcher", "f_push")
		returns := map[string]int{}
		b.fn = func(task *Task, bp *Breakpoint) {
			name := b.addrs[bp.Addr]
			if err := task.OnReturn(func(*Task, uint64) { returns[name]++ }); err != nil {
				t.Error(err)
			}
		}
		got, _ := b.run(t, o, "stacks")
		if got.output != "sum 380, other 40\n" || returns["switcher"] != 20 || returns["f_push"] != 20 {
			t.Errorf("%+v, returns %v", got, returns)
		}
	})
}
