"""Import autopar after torch, and print as JSON what that cost and what it touched."""

import json
import sys
import threading
import time


def main():
    import torch

    touched = []

    def listen(event, arguments):
        if event == "open":
            path, mode, flags = arguments
            if set(mode or "") & set("wax+") or (flags or 0) & 3:  # O_WRONLY, O_RDWR
                touched.append(f"open {path}")
        elif event.startswith(("_thread.start", "os.mkdir", "os.putenv", "socket.", "subprocess.")):
            touched.append(event)

    threads = threading.active_count()
    sys.addaudithook(listen)
    start_s = time.process_time()  # and none of what other processes take meanwhile
    import autopar

    cost_s = time.process_time() - start_s
    effects = [*touched]  # before there are others
    initialized = torch.cuda.is_initialized()
    autopar.synchronize()
    gpus = range(len(autopar.try_all_gpus()) if autopar.num_gpus() else 0)
    contexts = [i for i in gpus if torch._C._cuda_hasPrimaryContext(i)]
    found = {
        "cost_s": cost_s,
        "effects": effects,
        "threads": threading.active_count() - threads,
        "cuda": initialized,
        "contexts": contexts,  # also after a wait for all devices
        "matplotlib": "matplotlib" in sys.modules,
        "default_dtype": str(torch.get_default_dtype()),
        "file": autopar.__file__,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
