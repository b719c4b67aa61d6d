"""Pre-training with learned replacement sampling: a map from the paper to the code.

| paper (Hao et al., Findings of ACL 2021)                     | code                                               |
|--------------------------------------------------------------|----------------------------------------------------|
| masked language model p_G(x, c), section 2                   | `model.distribution.Dense`,                        |
|                                                              | `model.heads.VocabularyScores`                     |
| discriminator D(x, c) = sigmoid(-d), L_D                     | `model.heads.DiscriminatorHead`,                   |
|                                                              | `method.losses.discriminator_loss`                 |
| p_S proportional to p_G x L_D minimizes the variance,        | `model.distribution.hp_loss_weights`               |
| the proposition of section 3; its estimator, off by default  | `method.sampling.importance_weights`               |
| HP_Loss: estimate D_hat = sigmoid(e(x')·h_S), L_S            | `method.hardness_prediction.HPLoss`,               |
|                                                              | `.hp_loss_sampler_loss`                            |
| HP_Dist: p_S = softmax(e(x')·h_S), L_S                       | `method.hardness_prediction.HPDist`,               |
|                                                              | `.hp_dist_sampler_loss`                            |
| focal loss L_G, constant and piecewise gamma                 | `method.losses.focal_loss`                         |
| sampling x' from p_S; a sampled original counts as original  | `method.sampling.draw_from`, `.replace`            |
| total L_G + lambda1 L_S + lambda2 L_D                        | `method.electra.Detection.forward`                 |
| shared embeddings (after ELECTRA)                            | `model.encoder.Embeddings`, `.TiedEmbedding`       |
| relative position (after T5)                                 | `model.encoder.relative_bucket`, `.ElectraStack`   |
| n-gram masking, 15%                                          | `data_prep.masking`                                |
| hyper-parameters, both tables; the rows of the result tables | `presets.PRESETS`, `presets.ROWS`                  |
| detection accuracy, correlation of the estimate, maximum     | `training.metrics`, `analysis.observation`,        |
| probability of p_S, section 5                                | `analysis.analysis`, `foundation.stats`            |
| discriminators under p_G and p_S, appendix                   | `analysis.crossing`                                |

To follow a run, start at `run.main`, then read `training.start` from top to bottom: it makes the plan (configuration
and data), joins the processes, and puts the model under its engine. `training.train` is the loop.
"""
