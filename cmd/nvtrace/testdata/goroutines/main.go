// A program whose goroutines end calls on other threads than they began them, grow their stacks in
// them, and call themselves deeply.
package main

import (
	"fmt"
	"runtime"
	"sync"
)

//go:noinline
func blocks(a, b int, c chan int) int {
	c <- a
	runtime.Gosched()
	return <-c + b
}

//go:noinline
func grows(n int) int {
	var room [16 << 10]byte
	for i := range room {
		room[i] = byte(n + i)
	}
	return n + int(room[n%len(room)])*0
}

//go:noinline
func deep(n int) int {
	if n == 0 {
		return 0
	}
	return deep(n-1) + 1
}

//go:noinline
func nine(a, b, c, d, e, f, g, h, i int) int { return a + b + c + d + e + f + g + h + i }

//go:noinline
func leaf(p *int) { *p += 2 }

//go:noinline
func spins(p *int) {
	for *p > 0 {
		*p--
	}
}

type (
	shape  interface{ area(n int) int }
	square struct{ side int }
)

//go:noinline
func (s square) area(n int) int { return s.side * s.side * n }

//go:noinline
func recovers(n int) (r int) {
	defer func() {
		if recover() != nil {
			r = -n
		}
	}()
	if n%2 == 1 {
		panic("odd")
	}
	return n
}

func main() {
	var wg sync.WaitGroup
	var mu sync.Mutex
	sum := 0
	for g := range 20 {
		wg.Go(func() {
			c := make(chan int, 1)
			n := 0
			for i := range 20 {
				n += blocks(g, i, c)
			}
			n += grows(g) + deep(100*(g%10)) + nine(g, 1, 2, 3, 4, 5, 6, 7, 8)
			leaf(&n)
			k := g
			spins(&k)
			var s shape = square{g}
			n += s.area(2) + recovers(g)
			mu.Lock()
			sum += n
			mu.Unlock()
		})
	}
	wg.Wait()
	fmt.Println(sum)
}
