def MLA_ScaleOp : MLA_Op<"scale", [Pure]> {
  let description = [{
    - C1: not violated under its own name.
    - C2: violated.
    - C3: not violated.
  }];
}
