"""Prints its stack, the innermost call first, and waits until it is killed."""
import sys
import threading
import time
import traceback


class Späť:
    def call(self, n):
        if n:
            return self.call(
                n - 1,
            )
        return next(self.generator())

    def generator(self):
        squares = [(lambda i: self.stop() if i == 2 else i)(i) for i in range(3)]
        yield squares

    def stop(self):
        stack = traceback.extract_stack()
        # the lines that run now: of this call, that of the loop below
        print("|".join(f"{f.name}:{f.lineno}" for f in stack[::-1][1:]), threading.get_ident(), flush=True)
        while True:
            pass


def other():
    while True:
        time.sleep(0.01)


threading.Thread(target=other, daemon=True).start()
if len(sys.argv) > 1:
    t = threading.Thread(target=Späť().call, args=(3,))
    t.start()
    t.join()
Späť().call(3)
